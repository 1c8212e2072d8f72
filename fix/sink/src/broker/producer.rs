//! Dead letters into a topic.

use std::sync::Mutex;
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer as _, ProducerContext};

use crate::broker::{BrokerError, KafkaSettings, config, config_error};
use crate::events::Letter;

/// Brokers take a megabyte, and a letter that they refuse would end the sink each time it comes again: longer ones go
/// without their value, which is found by its offset.
const LETTER_BYTES_MAX: usize = 900_000;

fn letter_fits(letter: &Letter) -> bool {
    letter.value.as_ref().map_or(0, Vec::len) + letter.key.as_ref().map_or(0, Vec::len) < LETTER_BYTES_MAX
}

/// Writes letters to a topic.
pub struct Producer {
    producer: BaseProducer<Deliveries>,
    topic: String,
}

#[derive(Default)]
struct Deliveries {
    failed: Mutex<Option<String>>,
}

impl ClientContext for Deliveries {
    fn log(&self, _level: RDKafkaLogLevel, _facility: &str, _text: &str) {}
    fn error(&self, _error: KafkaError, _reason: &str) {}
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if let Err((e, _)) = result {
            self.failed.lock().expect("no thread panicked").get_or_insert(e.to_string());
        }
    }
}

impl Producer {
    /// On the brokers of the source.
    pub fn open(settings: &KafkaSettings, topic: &str) -> Result<Producer, BrokerError> {
        let mut config = config(settings);
        config.set("enable.idempotence", "true").set("delivery.timeout.ms", "30000");
        let about_reaching = |name: &str| {
            ["security.", "sasl.", "ssl.", "enable.ssl.", "broker.address"].iter().any(|p| name.starts_with(p))
        };
        for (name, value) in settings.properties.iter().filter(|(name, _)| about_reaching(name)) {
            config.set(name, value);
        }
        let producer = config.create_with_context(Deliveries::default()).map_err(config_error)?;
        Ok(Producer { producer, topic: topic.to_string() })
    }

    /// They are in the topic when this returns.
    pub fn send(&mut self, letters: &[Letter]) -> Result<(), BrokerError> {
        let failed = |why: String| BrokerError::Letters { topic: self.topic.clone(), why };
        for letter in letters {
            let place = format!("{} [{}] at {}", letter.origin.topic, letter.origin.partition, letter.offset);
            let mut headers = OwnedHeaders::new()
                .insert(Header { key: "unslow-reason", value: Some(&letter.reason) })
                .insert(Header { key: "unslow-from", value: Some(&place) });
            for (name, value) in &letter.headers {
                headers = headers.insert(Header { key: name, value: Some(value) });
            }
            let left_out = letter.value.as_ref().map_or(0, Vec::len).to_string();
            if !letter_fits(letter) {
                headers = headers.insert(Header { key: "unslow-value-bytes", value: Some(&left_out) });
            }
            let mut record: BaseRecord<'_, Vec<u8>, Vec<u8>> = BaseRecord::to(&self.topic).headers(headers);
            if let Some(key) = letter.key.as_ref().filter(|k| k.len() < LETTER_BYTES_MAX) {
                record = record.key(key);
            }
            if let Some(value) = letter.value.as_ref().filter(|_| letter_fits(letter)) {
                record = record.payload(value);
            }
            loop {
                match self.producer.send(record) {
                    Ok(()) => break,
                    // Its queue is full: let some go first.
                    Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                        self.producer.poll(Duration::from_millis(50));
                        record = back;
                    }
                    Err((e, _)) => return Err(failed(e.to_string())),
                }
            }
        }
        self.producer.flush(Duration::from_secs(31)).map_err(|e| failed(e.to_string()))?;
        let lost = self.producer.context().failed.lock().expect("no thread panicked").take();
        lost.map_or(Ok(()), |e| Err(failed(e)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(properties: &[(&str, &str)]) -> KafkaSettings {
        KafkaSettings {
            brokers: "127.0.0.1:1".into(),
            topics: vec!["t".into()],
            group: "g".into(),
            properties: properties.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
            until_end: true,
            exactly_once: false,
            headers: false,
        }
    }

    #[test]
    fn a_setting_that_librdkafka_does_not_take_is_named_without_its_value() {
        let error = Producer::open(&settings(&[("sasl.password.typo", "hush")]), "dead").err();
        assert!(matches!(&error, Some(BrokerError::Setting { name, .. }) if name == "sasl.password.typo"), "{error:?}");
        assert!(!format!("{error:?}").contains("hush"), "{error:?}");
        let error = config_error(KafkaError::ClientCreation("no memory".into()));
        assert!(matches!(&error, BrokerError::Client { why } if why.contains("no memory")), "{error:?}");
    }
}
