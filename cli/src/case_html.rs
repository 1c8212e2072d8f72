//! The cases' report as a page: each with its diagnosis, its before and after, and its drawings.

use anyhow::Context;
use minijinja::context;
use serde::Serialize;
use unslow_drill::case::Report;

use crate::case::rows;
use crate::drill_html::environment;

#[derive(Serialize)]
struct CasePage<'a> {
    report: &'a Report,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
    pictures: Vec<(String, String)>,
}

/// The whole page: nothing in it is fetched from elsewhere.
pub fn page(reports: &[Report]) -> anyhow::Result<String> {
    let mut cases = Vec::new();
    for report in reports {
        let mut all = rows(report);
        let head = all.remove(0);
        let mut pictures = Vec::new();
        for picture in &report.pictures {
            let svg = std::fs::read_to_string(&picture.file).with_context(|| picture.file.clone())?;
            pictures.push((picture.title.clone(), embedded(&svg)));
        }
        cases.push(CasePage { report, head, rows: all, pictures });
    }
    let seconds: f64 = reports.iter().map(|r| r.seconds).sum();
    environment("case.html", include_str!("../templates/case.html"))?
        .get_template("case.html")?
        .render(context! { cases, seconds => format!("{seconds:.0}") })
        .context("the page could not be rendered")
}

/// An SVG as a part of a page: without its head, its script, its comments, and names of other namespaces.
fn embedded(svg: &str) -> String {
    let mut text = svg.find("<svg").map_or(svg, |at| &svg[at..]).to_string();
    let parts = [
        ("<!--", "-->"),
        ("<script", "</script>"),
        (" xmlns:xlink=\"", "\""),
        (" xmlns:fg=\"", "\""),
        (" onload=\"", "\""),
    ];
    for (open, close) in parts {
        while let Some(from) = text.find(open) {
            let Some(length) = text[from + open.len()..].find(close) else { break };
            text.replace_range(from..from + open.len() + length + close.len(), "");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_drawing_brings_nothing_with_it() {
        let svg = "<?xml version=\"1.0\"?><!DOCTYPE svg \"http://x\"><svg width=\"1\" onload=\"init(evt)\" xmlns:xlink=\"http://y\"><!--z--><script>1</script><rect/></svg>";
        assert_eq!(super::embedded(svg), "<svg width=\"1\"><rect/></svg>");
    }
}
