//! A Kafka broker with a topic full of a file's lines, for bench/sink.sh. Ends with its parent's signal.
//!
//!     broker FILE TOPIC PARTITIONS

use std::io::{BufRead, BufReader};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use unslow_engine::Kafka;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, file, topic, partitions] = &arguments[..] else { return Err("broker FILE TOPIC PARTITIONS".into()) };
    let kafka = Kafka::start(&[&format!("num.partitions={partitions}"), "log.retention.ms=-1"])?;
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", kafka.address()).set("linger.ms", "20").set("enable.idempotence", "true");
    let producer: ThreadedProducer<DefaultProducerContext> = config.create()?;
    for (n, line) in BufReader::new(std::fs::File::open(file)?).lines().enumerate() {
        let (line, key) = (line?, n.to_string());
        let mut record = BaseRecord::to(topic).key(&key).payload(&line);
        while let Err((e, back)) = producer.send(record) {
            if e != KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull) {
                return Err(e.into());
            }
            record = back;
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    producer.flush(Duration::from_secs(120))?;
    println!("ready {}", kafka.address());
    loop {
        std::thread::park();
    }
}
