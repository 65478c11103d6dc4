//! Number of scenarios that need each exemption.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

/// Scenarios by exemption.
#[derive(Default)]
pub struct Tally {
    counts: Mutex<BTreeMap<&'static str, u64>>,
}

impl Tally {
    /// Adds the exemptions that one scenario needs.
    pub fn add(&self, excused: &BTreeSet<&'static str>) {
        let mut counts = self.counts.lock().unwrap();
        excused.iter().for_each(|why| *counts.entry(why).or_default() += 1);
    }
}

impl Drop for Tally {
    /// Prints the number of scenarios that need each exemption, whether the test fails or not.
    fn drop(&mut self) {
        for (why, count) in self.counts.lock().unwrap().iter() {
            println!("{count:6} scenarios need: {why}");
        }
    }
}
