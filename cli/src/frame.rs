//! The frame that every page shares: head, palette, tables, print (`templates/frame.html`).
//!
//! A page is one file: it fetches nothing, and it can be read without script. The one that is served (`web`) fetches
//! from where it came from, and has a twin that is like the others (`/charts`).

use anyhow::Context;
use minijinja::{Environment, Value};

const FRAME: &str = include_str!("../templates/frame.html");

/// Fills in a page's template, which extends `frame.html`. Its name ends in .html: everything put into it is escaped.
pub fn render(name: &'static str, template: &'static str, values: Value) -> anyhow::Result<String> {
    let mut environment = Environment::new();
    environment.add_template("frame.html", FRAME).context("the pages' frame")?;
    environment.add_template(name, template).context("the page's template")?;
    environment.get_template(name)?.render(values).context("the page could not be rendered")
}

/// `2026-11-21 02:31:52Z`.
pub fn date(at_ms: u64) -> String {
    let (year, month, day) = unslow_facts::civil_date(at_ms);
    let second = at_ms / 1000 % 86_400;
    format!("{year}-{month:02}-{day:02} {:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
pub mod tests {
    use std::collections::BTreeMap;

    use super::FRAME;

    /// What holds for every page, whatever it is about.
    #[track_caller]
    pub fn assert_framed(page: &str) {
        for once in ["<!doctype html>", "<head>", "<style>", "--ink: #1c2330", "<body>", "</html>"] {
            assert_eq!(page.matches(once).count(), 1, "{once} in\n{page}");
        }
        for never in ["<script", "src=", "@import", "url(", "NaN"] {
            assert!(!page.contains(never), "{never} in\n{page}");
        }
        let style = between(page, "<style>", "</style>");
        let (_, own) = style.split_once("{ display: none; } }").expect("the frame's own style ends so");
        assert_eq!(colour_in(own), None, "a colour beside the palette");
        let (_, body) = page.split_once("<body>").expect("it has one");
        for tag in body.split('<').skip(1).filter_map(|t| t.split_once('>')).map(|(tag, _)| tag) {
            assert_eq!(colour_in(tag), None, "a colour outside the frame: <{tag}>");
        }
        for table in body.match_indices("<table").map(|(at, _)| at) {
            // A box that scrolls is reached by the keyboard, and has a name.
            let box_of = body[..table].rfind('<').map(|at| &body[at..table]).unwrap_or_default();
            let is_box = box_of.starts_with("<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"");
            assert!(is_box && box_of.ends_with("\">"), "a table without a box: {:.200}", &body[table..]);
        }
        for name in style.split("var(").chain(body.split("var(")).filter_map(|t| t.split_once(')')).map(|(n, _)| n) {
            let is_named = !name.starts_with("--") || FRAME.contains(&format!("{name}: #"));
            assert!(is_named, "{name} is not in the palette");
        }
    }

    fn between<'a>(text: &'a str, from: &str, until: &str) -> &'a str {
        let (_, rest) = text.split_once(from).expect("its beginning");
        rest.split_once(until).expect("its end").0
    }

    /// A colour that is written down instead of named.
    fn colour_in(text: &str) -> Option<&str> {
        let hex = text.match_indices('#').map(|(at, _)| &text[at..]).find(|rest| {
            let digits = rest[1..].chars().take_while(char::is_ascii_hexdigit).count();
            [3, 4, 6, 8].contains(&digits) && !rest[1 + digits..].starts_with(|c: char| c.is_alphanumeric())
        });
        hex.or_else(|| ["rgb(", "rgba(", "hsl(", ": white", ": black"].into_iter().find(|word| text.contains(*word)))
    }

    /// The palettes: light, dark.
    fn palettes() -> [BTreeMap<&'static str, [f64; 3]>; 2] {
        let (light, rest) = between(FRAME, ":root {", "body {").split_once("@media").expect("a dark one");
        [light, rest].map(|text| {
            let named = text.split(';').filter_map(|rule| rule.rsplit_once("--")?.1.split_once(": #"));
            named.map(|(name, hex)| (name, rgb(hex.trim()))).collect()
        })
    }

    fn rgb(hex: &str) -> [f64; 3] {
        assert_eq!(hex.len(), 6, "{hex}");
        [0, 2, 4].map(|at| f64::from(u8::from_str_radix(&hex[at..at + 2], 16).expect("a colour")) / 255.0)
    }

    /// The ratio that WCAG defines.
    fn contrast(a: [f64; 3], b: [f64; 3]) -> f64 {
        let luminance = |c: [f64; 3]| {
            let [r, g, b] = c.map(|x| if x <= 0.04045 { x / 12.92 } else { ((x + 0.055) / 1.055).powf(2.4) });
            0.2126 * r + 0.7152 * g + 0.0722 * b
        };
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn words_can_be_read_and_lines_can_be_seen_in_both_palettes() {
        let [light, dark] = palettes();
        assert_eq!(light.keys().collect::<Vec<_>>(), dark.keys().collect::<Vec<_>>());
        for palette in [&light, &dark] {
            for word in ["ink", "soft", "bad", "warn", "good"] {
                for ground in ["paper", "card"] {
                    let ratio = contrast(palette[word], palette[ground]);
                    assert!(ratio >= 4.5, "{word} on {ground}: {ratio:.2}");
                }
            }
            // Labels of bars and of axes lie over a fault's band.
            for word in ["ink", "soft"] {
                assert!(contrast(palette[word], palette["hit"]) >= 4.5, "{word} on the band of a fault");
            }
            for line in ["s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "bad"] {
                for ground in ["paper", "hit"] {
                    let ratio = contrast(palette[line], palette[ground]);
                    assert!(ratio >= 3.0, "{line} on {ground}: {ratio:.2}");
                }
            }
        }
    }

    #[test]
    fn a_colour_that_is_written_down_is_found() {
        for written in ["fill=\"#fff\"", "style=\"color: rgb(1,2,3)\"", "background: #1c2330;", "color: white"] {
            assert!(colour_in(written).is_some(), "{written}");
        }
        for named in ["fill=\"var(--s1)\"", "href=\"#keys_command\"", "stroke: currentColor", "key#12"] {
            assert_eq!(colour_in(named), None, "{named}");
        }
    }
}
