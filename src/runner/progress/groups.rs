//! Which ranks share a line of the terminal. Pure.

/// Ranks that share a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub label: String,
    /// Numbers of the ranks on the board.
    pub ranks: Vec<usize>,
}

/// Groups of ranks for at most `most` lines: one for each rank if they fit, else one for each role, else one.
pub fn groups(names: &[String], most: usize) -> Vec<Group> {
    let own_lines =
        names.iter().enumerate().map(|(nth, name)| Group { label: name.clone(), ranks: vec![nth] });
    if names.len() <= most {
        return own_lines.collect();
    }
    let mut roles: Vec<(&str, Vec<usize>)> = Vec::new();
    for (nth, name) in names.iter().enumerate() {
        let role = name.trim_end_matches(|c: char| c.is_ascii_digit());
        match roles.iter_mut().find(|(known, _)| *known == role) {
            Some((_, ranks)) => ranks.push(nth),
            None => roles.push((role, vec![nth])),
        }
    }
    if roles.len() > most {
        roles = vec![("rank", (0..names.len()).collect())];
    }
    let of_role = |(role, ranks): (&str, Vec<usize>)| match ranks[..] {
        [nth] => Group { label: names[nth].clone(), ranks },
        _ => Group { label: format!("{} {role}s", ranks.len()), ranks },
    };
    roles.into_iter().map(of_role).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(names: &[String], most: usize) -> Vec<String> {
        groups(names, most).into_iter().map(|group| group.label).collect()
    }

    #[test]
    fn ranks_that_do_not_fit_share_a_line_with_their_role() {
        let trainers = (2..14).map(|rank| format!("trainer{rank}"));
        let names: Vec<String> = ["master0".into(), "server1".into()].into_iter().chain(trainers).collect();
        assert_eq!(labels(&names, 14), names);
        assert_eq!(labels(&names, 9), ["master0", "server1", "12 trainers"]);
        assert_eq!(labels(&names, 2), ["14 ranks"]);
        let of_trainers = &groups(&names, 9)[2];
        assert_eq!(of_trainers.ranks, (2..14).collect::<Vec<_>>());
    }
}
