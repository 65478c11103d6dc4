//! Rules of the protocol that a replay holds packets against.

/// A rule that a packet can break: an entry of the table of the part that checks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Rule {
    /// Name, unique in the crate: `response-msn`, `request-psn-order`. Tables of known
    /// deviations and tests use it.
    pub id: &'static str,
    /// The rule in one sentence.
    pub text: &'static str,
    /// Place in the specification: `C9-92`, `§9.7.5.2.8`.
    pub citation: &'static str,
}

/// Declares the rules of a part: name, id, sentence and citation of each.
macro_rules! rules {
    ($($name:ident = $id:literal, $text:literal, $citation:literal;)*) => {
        $(
            #[doc = $text]
            pub(crate) const $name: $crate::replay::Rule =
                $crate::replay::Rule { id: $id, text: $text, citation: $citation };
        )*
        /// All rules of this part.
        pub(crate) const ALL: &[&$crate::replay::Rule] = &[$(&$name),*];
    };
}
pub(super) use rules;

/// The rules of all parts.
pub fn all_rules() -> Vec<&'static Rule> {
    use super::{datagram, management, requester, responder};
    [responder::rules::ALL, requester::rules::ALL, datagram::rules::ALL, management::rules::ALL]
        .concat()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::conform::deviation::Table;

    #[test]
    fn rules_have_names_of_their_own_sentences_and_citations() {
        let all = all_rules();
        let names: HashSet<&str> = all.iter().map(|rule| rule.id).collect();
        assert_eq!(names.len(), all.len());
        for rule in &all {
            assert!(rule.text.ends_with('.') && !rule.citation.is_empty(), "{rule:?}");
        }
    }

    #[test]
    fn known_deviations_break_rules_that_there_are() {
        let all = all_rules();
        for device in Table::devices() {
            let table = Table::named(&device).unwrap().unwrap();
            for entry in &table.replays {
                assert!(all.iter().any(|rule| rule.id == entry.rule), "{device}: {}", entry.rule);
            }
        }
    }
}
