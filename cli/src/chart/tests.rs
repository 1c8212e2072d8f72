//! Round values, units, gaps, and what is drawn of nothing.

use super::axis::Axis;
use super::*;

fn labels(axis: &Axis) -> Vec<&str> {
    axis.ticks.iter().map(|t| t.label.as_str()).collect()
}

fn chart(lines: Vec<Line>, values: Values) -> String {
    LineChart { title: "a chart", lines, along: Along::TimeUntil(1e6), values, marks: &[] }.html()
}

fn line(points: &[(f64, f64)]) -> Vec<Line> {
    vec![("x".into(), points.to_vec())]
}

#[test]
fn a_time_is_named_in_the_unit_its_axis_wants() {
    let up_to = |us: f64| labels(&Axis::up_to(Unit::Time, us)).join(" ");
    assert_eq!(up_to(100_000.0), "0 20 ms 40 ms 60 ms 80 ms 100 ms");
    assert_eq!(up_to(42.0), "0 10 us 20 us 30 us 40 us 50 us");
    assert_eq!(up_to(1_300_000.0), "0 0.5 s 1.0 s 1.5 s");
    assert_eq!(up_to(2_500.0), "0 0.5 ms 1.0 ms 1.5 ms 2.0 ms 2.5 ms");
    let until = |s: f64| labels(&Axis::until(Unit::Time, s * 1e6)).join(" ");
    assert_eq!(until(10.2), "0 2 s 4 s 6 s 8 s 10 s");
    assert_eq!(until(120.0), "0 30 s 60 s 90 s 120 s");
    assert_eq!(until(3000.0), "0 10 min 20 min 30 min 40 min 50 min");
    assert_eq!(until(4.0 * 86_400.0), "0 24 h 48 h 72 h 96 h");
}

#[test]
fn counts_are_whole_and_shares_are_percent() {
    assert_eq!(labels(&Axis::up_to(Unit::Count, 2.0)), ["0", "1", "2"]);
    assert_eq!(labels(&Axis::up_to(Unit::Count, 0.3)), ["0", "1"]);
    assert_eq!(labels(&Axis::up_to(Unit::Count, 83_412.0)), ["0", "20,000", "40,000", "60,000", "80,000", "100,000"]);
    assert_eq!(labels(&Axis::up_to(Unit::Count, 1.9e7)), ["0", "5 M", "10 M", "15 M", "20 M"]);
    assert_eq!(labels(&Axis::up_to(Unit::Percent, 97.0)), ["0", "20 %", "40 %", "60 %", "80 %", "100 %"]);
}

#[test]
fn an_axis_of_what_is_measured_ends_on_a_named_value_and_one_of_time_where_the_time_ends() {
    for most in [0.0, 0.7, 1.0, 3.3, 9.999, 12_345.0, 9.9e9] {
        for unit in [Unit::Time, Unit::Count, Unit::Percent] {
            let axis = Axis::up_to(unit, most);
            assert!((2..=8).contains(&axis.ticks.len()), "{unit:?} {most}: {:?}", labels(&axis));
            assert!((axis.ticks.last().unwrap().at - 1.0).abs() < 1e-9, "{unit:?} {most}");
        }
    }
    assert_eq!(Axis::until(Unit::Time, 9.5e6).place(9.5e6), Some(1.0));
}

#[test]
fn a_logarithmic_axis_names_decades_each_in_its_own_unit() {
    let log = |values: &[f64]| labels(&Axis::log(Unit::Time, values.iter().copied())).join(" ");
    assert_eq!(log(&[90.0, 1_500_000.0]), "100 us 1 ms 10 ms 100 ms 1 s");
    assert_eq!(log(&[110.0, 430.0]), "100 us 200 us 500 us");
    assert_eq!(log(&[250.0]), "200 us 500 us");
    assert_eq!(log(&[100.0]), "100 us 200 us 500 us 1 ms");
    assert_eq!(log(&[2e6, 3e8]), "10 s 100 s");
    assert_eq!(log(&[]), "1 us 2 us 5 us 10 us");
    assert_eq!(log(&[f64::NAN, 0.0, -1.0]), "1 us 2 us 5 us 10 us");
}

#[test]
fn each_nine_takes_the_same_room() {
    let axis = Axis::nines(4.2);
    assert_eq!(labels(&axis), ["50 %", "90 %", "99 %", "99.9 %", "99.99 %"]);
    let at: Vec<f64> = axis.ticks.iter().map(|t| t.at).collect();
    assert!((at[2] - 2.0 * at[1]).abs() < 1e-9 && (at[4] - 4.0 * at[1]).abs() < 1e-9, "{at:?}");
}

#[test]
fn no_value_is_drawn_where_none_is() {
    let all = [
        chart(Vec::new(), Values::Linear(Unit::Count)),
        chart(line(&[]), Values::Log(Unit::Time)),
        chart(line(&[(1.0, f64::NAN), (f64::NAN, 1.0)]), Values::Log(Unit::Time)),
        chart(line(&[(1.0, 0.0)]), Values::Log(Unit::Time)),
    ];
    for html in all {
        assert!(html.contains("Nothing to draw") && !html.contains("<svg"), "{html}");
    }
}

#[test]
fn a_gap_breaks_the_line_and_a_point_alone_is_a_dot() {
    let html = chart(
        line(&[(0.0, 5.0), (1e5, 6.0), (2e5, f64::NAN), (3e5, 7.0), (4e5, f64::INFINITY), (5e5, 1.0), (6e5, 2.0)]),
        Values::Linear(Unit::Count),
    );
    assert_eq!((html.matches("<polyline").count(), html.matches("class=\"dot s1\"").count()), (2, 1), "{html}");
    assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
    let one = chart(line(&[(5e5, 3.0)]), Values::Log(Unit::Time));
    assert!(one.contains("d=\"M500.0 ") && !one.contains("<polyline"), "{one}");
}

#[test]
fn every_point_lies_in_the_drawing() {
    let points: Vec<(f64, f64)> = (0..50).map(|i| (f64::from(i) * 1e6, f64::from(i * i) * 37.0)).collect();
    for values in [Values::Linear(Unit::Count), Values::Log(Unit::Time)] {
        let html = chart(line(&points), values);
        let drawn = html.split("points=\"").nth(1).and_then(|t| t.split('"').next()).unwrap();
        assert!(drawn.split_whitespace().count() >= 49, "{drawn}");
        for point in drawn.split_whitespace() {
            let (x, y) = point.split_once(',').unwrap();
            let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
            assert!((0.0..=WIDTH).contains(&x) && (0.0..=HEIGHT).contains(&y), "{point}");
        }
    }
}

#[test]
fn names_are_text_and_stand_above_the_drawing() {
    let html = chart(vec![("<b>&\"".into(), vec![(0.0, 1.0), (1.0, 2.0)])], Values::Linear(Unit::Count));
    assert!(html.contains("&lt;b&gt;&amp;&quot;") && !html.contains("<b>"), "{html}");
    assert!(html.find("class=\"legend\"").unwrap() < html.find("<svg").unwrap(), "{html}");
    let drawing = html.split("<svg").nth(1).and_then(|t| t.split("</svg>").next()).unwrap();
    assert!(!drawing.contains("<text"), "words in a stretched drawing are stretched: {drawing}");
}

#[test]
fn colours_are_names_of_the_palette() {
    let html =
        chart((0..20).map(|i| (format!("n{i}"), vec![(0.0, 1.0), (1e6, 2.0)])).collect(), Values::Log(Unit::Time));
    let frame = include_str!("../../templates/frame.html");
    for i in 1..=COLOURS {
        assert!(html.contains(&format!("<polyline class=\"s{i}\"")), "s{i}");
        assert!(frame.contains(&format!(".s{i} {{ color: var(--s{i}); }}")), "the frame has no colour {i}");
    }
    assert!(
        !html.contains('#') && !html.contains("rgb") && !html.contains("fill=") && !html.contains("stroke="),
        "{html}"
    );
}

#[test]
fn a_time_line_shows_its_fault_and_every_bar() {
    let bar = |from_us, until_us, weight| Bar { from_us, until_us, weight };
    let html = TimeLine {
        title: "time line of kill",
        fault: Some(("kill", 2_000_000, 5_000_000)),
        moments: None,
        end_us: 10_000_000,
        rows: vec![
            Row {
                label: "client 0".into(),
                bars: vec![bar(2_000_000, 4_000_000, Weight::Main), bar(3_000_000, 3_000_010, Weight::Other)],
            },
            // Begins at the very end, and is seen.
            Row { label: "<client 1>".into(), bars: vec![bar(10_000_000, 10_000_000, Weight::Main)] },
        ],
        names: [(Weight::Main, "follows"), (Weight::Other, "stays")],
    }
    .html();
    assert!(html.contains("aria-label=\"time line of kill\"") && html.contains("kill active"), "{html}");
    assert!(html.contains("<rect class=\"hit\" x=\"200.0\" y=\"0\" width=\"300.0\""), "{html}");
    assert!(html.contains("<rect class=\"main\" x=\"200.0\" y=\"17\" width=\"200.0\""), "{html}");
    assert!(html.contains("<rect class=\"other\" x=\"300.0\" y=\"24\" width=\"3.0\""), "{html}");
    assert!(html.contains("x=\"997.0\"") && html.contains("&lt;client 1&gt;"), "{html}");
    let empty = TimeLine {
        title: "nobody",
        fault: Some(("none", 0, 0)),
        moments: None,
        end_us: 0,
        rows: Vec::new(),
        names: [(Weight::Main, "a"), (Weight::Other, "b")],
    };
    assert!(!empty.html().contains("NaN"));
}

#[test]
fn a_line_with_more_points_than_places_keeps_its_extremes() {
    let at = |i: usize| Some((i as f64 / 100.0, if i == 4_321 { 0.5 } else { 100.0 + (i % 7) as f64 }));
    let part: Vec<_> = (0..100_000).map(at).collect();
    let thin = super::thinned(&part);
    assert!(thin.len() <= 4_000, "{}", thin.len());
    assert!(thin.contains(&part[4_321]) && thin.first() == part.first() && thin.last() == part.last());
    assert!(thin.windows(2).all(|pair| pair[0] < pair[1]), "in order, each once");
    assert_eq!(super::thinned(&part[..4_000]).len(), 4_000, "as it is");
}
