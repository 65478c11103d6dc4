//! The name that was probably meant.

use super::super::context::FieldRef;

/// `there is no field 'X'`, with the name that was probably meant.
pub fn unknown_field(name: &str) -> String {
    match nearest(&name.to_lowercase(), FieldRef::names()) {
        Some(known) => format!("there is no field '{name}' (did you mean '{known}'?)"),
        None => format!("there is no field '{name}'"),
    }
}

/// The one of `names` that `wanted` is a misspelling of, if there is one.
pub(super) fn nearest<'n>(wanted: &str, names: &[&'n str]) -> Option<&'n str> {
    // What is twice as long as any name is no misspelling.
    let candidates = names.iter().filter(|known| wanted.len() < 2 * known.len());
    let nearest = candidates.map(|known| (edit_distance(wanted, known), *known)).min();
    let is_near = |distance: usize| distance <= 3 && distance * 3 <= wanted.len();
    nearest.filter(|(distance, _)| is_near(*distance)).map(|(_, known)| known)
}

/// The edit distance (Levenshtein) between `a` and `b`.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cell, y) in row.iter_mut().skip(1).zip(&b) {
            let changed = diagonal + usize::from(x != *y);
            diagonal = *cell;
            left = changed.min(diagonal + 1).min(left + 1);
            *cell = left;
        }
        row[0] = i + 1;
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_of_words_counts_their_differences() {
        assert_eq!(edit_distance("psn", "psn"), 0);
        assert_eq!(edit_distance("pns", "psn"), 2);
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("kitten", "sitting"), 3);
    }
}
