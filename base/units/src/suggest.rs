//! "Did you mean": names that are spelled almost like the one that was typed.

/// Names that were probably meant, the most likely first: those that are a few letters away, then those that hold the
/// word or are held by it.
pub fn similar<'a>(name: &str, all: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut ranked: Vec<(usize, &str)> = all
        .into_iter()
        .filter_map(|known| {
            let (distance, most) = (strsim::damerau_levenshtein(name, known), allowed(name));
            let part = name.len() >= 3 && known.len() >= 3 && (known.contains(name) || name.contains(known));
            match distance <= most {
                true => Some((distance, known)),
                false => part.then_some((most + 1, known)),
            }
        })
        .collect();
    ranked.sort_unstable();
    ranked.into_iter().map(|(_, known)| known).collect()
}

/// The one that is spelled most like it; none if all of them are far off.
pub fn nearest<'a>(name: &str, all: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let ranked = all.into_iter().map(|known| (strsim::damerau_levenshtein(name, known), known));
    ranked.min().filter(|(distance, _)| *distance <= allowed(name)).map(|(_, known)| known)
}

/// The end of a sentence: `; did you mean "zone-b"?`, or what there is.
pub fn did_you_mean(name: &str, all: &[&str]) -> String {
    match nearest(name, all.iter().copied()) {
        Some(known) => format!("; did you mean {known:?}?"),
        None if all.is_empty() => String::new(),
        None => format!("; there are {}", all.join(", ")),
    }
}

/// Letters put in, left out, changed or exchanged with their neighbour: two, and more in a longer name.
fn allowed(name: &str) -> usize {
    2.max(name.len() / 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_fingers_is_understood() {
        let all = ["kill", "hang", "partition"];
        for (typed, meant) in [("kil", Some("kill")), ("hagn", Some("hang")), ("partiton", Some("partition"))] {
            assert_eq!(nearest(typed, all), meant, "{typed}");
        }
        assert_eq!(nearest("reshard", all), None);
        assert_eq!(did_you_mean("hagn", &all), "; did you mean \"hang\"?");
        assert_eq!(did_you_mean("reshard", &all), "; there are kill, hang, partition");
        assert_eq!(did_you_mean("hang", &[]), "");
    }

    #[test]
    fn part_of_a_name_comes_after_its_misspellings() {
        let all = ["keys_command", "slow_command", "big_key", "swap"];
        assert_eq!(similar("key_command", all), ["keys_command"]);
        assert_eq!(similar("command", all), ["keys_command", "slow_command"]);
        assert_eq!(similar("swpa", all), ["swap"]);
        assert!(similar("nonsense_indeed", all).is_empty());
    }
}
