//! The cases' report as a page: each with its diagnosis, its before and after, and its drawings.

use anyhow::Context;
use minijinja::context;
use serde::Serialize;
use unslow_drill::case::Report;

use super::text::rows;
use crate::frame;

#[derive(Serialize)]
struct CasePage<'a> {
    report: &'a Report,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
    pictures: Vec<(String, String)>,
}

pub fn render(reports: &[Report]) -> anyhow::Result<String> {
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
    let values = context! { cases, seconds => format!("{seconds:.0}") };
    frame::render("case.html", include_str!("../../templates/case.html"), values)
}

/// An SVG as a part of a page: without its head, script, comments, names of other namespaces, and the style that
/// would hold for the whole page.
fn embedded(svg: &str) -> String {
    let mut text = svg.find("<svg").map_or(svg, |at| &svg[at..]).to_string();
    let parts = [
        ("<!--", "-->"),
        ("<script", "</script>"),
        ("<style", "</style>"),
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
    use unslow_drill::case::{self, Picture, Row};

    use super::*;
    use crate::frame::tests::assert_framed;

    fn report(name: &str) -> Report {
        Report::crashed(case::find(name).expect("it is there"), 1, &unslow_engine::Error::new("it <broke>").into())
    }

    #[test]
    fn a_drawing_brings_nothing_with_it() {
        let svg = "<?xml version=\"1.0\"?><!DOCTYPE svg \"http://x\"><svg width=\"1\" onload=\"init(evt)\" \
                   xmlns:xlink=\"http://y\"><!--z--><style type=\"a\">text \
                   { color: red }</style><script>1</script><rect/></svg>";
        assert_eq!(embedded(svg), "<svg width=\"1\"><rect/></svg>");
    }

    #[test]
    fn a_page_of_every_case_is_framed_and_keeps_its_drawings_folded() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("flame.svg").display().to_string();
        std::fs::write(&file, "<svg><style>text { fill: red }</style><text>main</text></svg>").expect("written");
        let failed: Vec<Report> = case::ALL.iter().map(|c| report(c.name)).collect();
        assert_framed(&render(&failed).expect("a page"));
        let picture = Picture { title: "before".into(), file };
        let row = Row { name: "TCP".into(), cells: vec!["1 ms".into()] };
        let told = Report {
            columns: vec!["".into(), "p99".into()],
            rows: vec![row],
            pictures: vec![picture],
            ..report("fork-stall")
        };
        let page = render(&[told]).expect("a page");
        assert_framed(&page);
        assert!(page.contains("<details><summary>before</summary><div class=\"flame\" tabindex=\"0\""), "{page}");
        assert!(page.contains("\"><svg><text>main</text>"), "{page}");
        assert!(page.contains("<td>TCP</td><td>1 ms</td>"), "{page}");
    }
}
