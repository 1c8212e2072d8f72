//! The list of incidents as a page: a lane for each cause on one time line, and what each cost.

use std::collections::BTreeMap;

use minijinja::{Value, context};
use unslow_doctor::{Incident, Incidents, Severity};
use unslow_units::time_rough_s;

use super::text::{end_of, rhythm};
use crate::chart::{Bar, Row, TimeLine, Weight};
use crate::frame;
use crate::when::{local_time, round_times};

/// Named times along the bottom, at most.
const TIMES: u64 = 8;

pub fn render(found: &Incidents) -> anyhow::Result<String> {
    let (from, to) = (local_time(found.from_ms), local_time(found.to_ms));
    let unseen = f64::from(found.windows_unseen) * found.window_s;
    let values = context! {
        from, to,
        chart => (!found.incidents.is_empty()).then(|| lanes(found)),
        incidents => found.incidents.iter().map(view).collect::<Vec<_>>(),
        repeats => found.repeats.iter().map(|r| rhythm(r, &found.incidents)).collect::<Vec<_>>(),
        unseen => (unseen > 0.0).then(|| time_rough_s(unseen)),
        silenced => found.silenced.iter().map(|s| context! {
            rule => s.rule, reason => s.reason, until => local_time(s.until_ms),
            lasted => time_rough_s(f64::from(s.windows) * found.window_s),
        }).collect::<Vec<_>>(),
    };
    frame::render("incidents.html", include_str!("../../templates/incidents.html"), values)
}

fn lanes(found: &Incidents) -> String {
    let since = |ms: u64| ms.saturating_sub(found.from_ms).saturating_mul(1000);
    let several = found.incidents.iter().any(|i| i.deployment != found.incidents[0].deployment);
    let mut rows: BTreeMap<String, Vec<Bar>> = BTreeMap::new();
    for incident in &found.incidents {
        let label = if several { format!("{} {}", incident.rule, incident.deployment) } else { incident.rule.clone() };
        let weight = if incident.severity >= Severity::High { Weight::Main } else { Weight::Other };
        let bar = Bar { from_us: since(incident.began_ms), until_us: since(incident.ended_ms), weight };
        rows.entry(label).or_default().push(bar);
    }
    let times = round_times(found.from_ms, found.to_ms, TIMES);
    let chart = TimeLine {
        title: "incidents, a lane for each cause",
        fault: None,
        end_us: since(found.to_ms),
        moments: Some(times.into_iter().map(|(at, name)| (since(at) as f64, name)).collect()),
        rows: rows.into_iter().map(|(label, bars)| Row { label, bars }).collect(),
        names: [(Weight::Main, "high or critical"), (Weight::Other, "less")],
    };
    chart.html()
}

fn view(incident: &Incident) -> Value {
    let severity = format!("{:?}", incident.severity).to_lowercase();
    context! {
        id => incident.id, rule => incident.rule, title => incident.title, severity,
        is_bad => incident.severity >= Severity::High,
        began => local_time(incident.began_ms),
        until => if incident.lasts { "and lasts".to_string() } else { format!("to {}", end_of(incident)) },
        lasted => time_rough_s(incident.lasted_ms() as f64 / 1e3),
        deployment => incident.deployment,
        subjects => incident.subjects.join(", "),
        impact => incident.impact.text,
        chain => incident.chain.iter().map(|link| &link.text).collect::<Vec<_>>(),
        evidence => incident.evidence.iter().map(|e| (&e.source, &e.value)).collect::<Vec<_>>(),
    }
}

#[cfg(test)]
mod tests {
    use unslow_doctor::{Currency, INCIDENTS_SCHEMA, Impact};

    use super::*;

    fn incident(id: u32, rule: &str, began_ms: u64, severity: Severity) -> Incident {
        Incident {
            id,
            deployment: "redis://a:1".into(),
            rule: rule.into(),
            title: "fork() stops <a:1>".into(),
            severity,
            subjects: vec!["a:1".into()],
            began_ms,
            ended_ms: began_ms + 120_000,
            lasts: false,
            windows: 2,
            worst_ms: began_ms,
            impact: Impact { currency: Currency::Latency, value: 1.0, unit: "ms".into(), text: "1 ms".into() },
            chain: Vec::new(),
            evidence: Vec::new(),
        }
    }

    fn list(incidents: Vec<Incident>) -> Incidents {
        let (repeats, silenced) = (Vec::new(), Vec::new());
        let schema = INCIDENTS_SCHEMA.into();
        Incidents {
            schema,
            from_ms: 0,
            to_ms: 86_400_000,
            window_s: 60.0,
            windows_unseen: 3,
            incidents,
            repeats,
            silenced,
        }
    }

    #[test]
    fn each_cause_has_a_lane_and_each_incident_its_place() {
        let high = |id, began_ms| incident(id, "fork_stall", began_ms, Severity::High);
        let all = vec![high(1, 3_600_000), incident(2, "keys_command", 7_200_000, Severity::Low), high(3, 50_000_000)];
        let page = render(&list(all)).unwrap();
        frame::tests::assert_framed(&page);
        assert_eq!(page.matches("<span class=\"r\"").count(), 2, "lanes");
        assert_eq!(page.matches("<rect class=\"main\"").count(), 2);
        assert_eq!(page.matches("<article").count(), 3);
        assert!(page.contains("fork() stops &lt;a:1&gt;") && page.contains("Nothing was recorded in 3 min"), "{page}");
    }

    #[test]
    fn a_quiet_day_says_so() {
        let page = render(&list(Vec::new())).unwrap();
        frame::tests::assert_framed(&page);
        assert!(page.contains("No incidents") && !page.contains("<svg"));
    }
}
