//! Expressions, and one instance for each combination of what a scenario varies.

use serde::{Deserialize, Serialize};

use super::scenario::{Action, Scenario};

/// A number, or a sum of products of numbers, `size` and `mtu`: `5*mtu+1`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Expr {
    /// A number.
    Number(u64),
    /// Something to be counted.
    Text(String),
}

impl std::fmt::Display for Expr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// What expressions count with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Values {
    /// The payload of a packet.
    pub mtu: u64,
    /// The length of messages.
    pub size: Option<u64>,
}

impl Expr {
    /// The number that it is.
    pub fn value(&self, values: Values) -> Result<u64, String> {
        match self {
            Self::Number(number) => Ok(*number),
            Self::Text(text) => sum(text, values),
        }
    }
}

/// The largest number that may come of an expression: far more than a buffer has.
const VALUE_MAX: i64 = 1 << 40;

pub(super) fn sum(text: &str, values: Values) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no number from 0 on");
    let mut total = 0_i64;
    let mut rest = text;
    let mut sign = 1;
    loop {
        let end = rest.find(['+', '-']).unwrap_or(rest.len());
        let (term, behind) = rest.split_at(end);
        let product = product(term, values)?;
        total =
            product.checked_mul(sign).and_then(|term| total.checked_add(term)).ok_or_else(wrong)?;
        let mut behind = behind.chars();
        sign = match behind.next() {
            None => break,
            Some('-') => -1,
            Some(_) => 1,
        };
        rest = behind.as_str();
    }
    u64::try_from(total).map_err(|_| wrong())
}

fn product(text: &str, values: Values) -> Result<i64, String> {
    let too_large = || format!("`{text}` is too large");
    text.split('*').try_fold(1_i64, |product, factor| {
        let factor = match factor.trim() {
            "mtu" => values.mtu,
            "size" => values.size.ok_or("`size` cannot be counted with itself")?,
            number => number.parse().map_err(|_| {
                format!("there is no `{number}` to count with; there are size and mtu")
            })?,
        };
        let factor = i64::try_from(factor).map_err(|_| too_large())?;
        product.checked_mul(factor).filter(|it| *it <= VALUE_MAX).ok_or_else(too_large)
    })
}

/// A scenario with one value for everything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Instance {
    /// The scenario's name, and what was chosen: `write/size=mtu+1,mtu=256`.
    pub name: String,
    /// The scenario.
    pub scenario: Scenario,
    /// The payload of a packet.
    pub mtu: u32,
    /// The length of messages.
    pub size: u64,
    /// What a step `op` posts.
    pub op: Action,
}

impl Instance {
    /// What its expressions count with.
    pub const fn values(&self) -> Values {
        Values { mtu: self.mtu as u64, size: Some(self.size) }
    }
}

/// The most instances of one scenario.
const INSTANCES_MAX: usize = 1000;

/// All instances of a scenario.
pub(super) fn expand(scenario: Scenario) -> Result<Vec<Instance>, String> {
    let (mtus, sizes, ops) = (scenario.mtu.all(), scenario.size.all(), scenario.op.all());
    let count = mtus.len() * sizes.len() * ops.len();
    if count == 0 || count > INSTANCES_MAX {
        return Err(format!(
            "mtu, size, op: {count} combinations are not between 1 and {INSTANCES_MAX}"
        ));
    }
    let mut all = Vec::new();
    for op in &ops {
        for &mtu in &mtus {
            if !matches!(mtu, 256 | 512 | 1024 | 2048 | 4096) {
                return Err(format!("mtu: {mtu} is none of 256, 512, 1024, 2048, 4096"));
            }
            for size in &sizes {
                let values = Values { mtu: mtu.into(), size: None };
                let bytes = size.value(values).map_err(|text| format!("size: {text}"))?;
                let chosen = [
                    scenario.op.varies().then(|| format!("op={op}")),
                    scenario.size.varies().then(|| format!("size={size}")),
                    scenario.mtu.varies().then(|| format!("mtu={mtu}")),
                ];
                let chosen: Vec<String> = chosen.into_iter().flatten().collect();
                let slash = if chosen.is_empty() { "" } else { "/" };
                let name = format!("{}{slash}{}", scenario.name, chosen.join(","));
                let scenario = scenario.clone();
                let instance = Instance { name, scenario, mtu, size: bytes, op: *op };
                evaluate(&instance)?;
                all.push(instance);
            }
        }
    }
    Ok(all)
}

/// Whether every expression can be counted.
fn evaluate(instance: &Instance) -> Result<(), String> {
    let values = instance.values();
    for (at, step) in instance.scenario.steps.iter().enumerate() {
        let fields = [("len", &step.len), ("at", &step.at), ("to", &step.to)];
        let one = fields.into_iter().filter_map(|(name, field)| Some((name, field.as_ref()?)));
        let sges = step.sges.iter().flatten().map(|sge| ("sges", sge));
        for (name, field) in one.chain(sges) {
            field.value(values).map_err(|text| format!("steps[{at}].{name}: {text}"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_products_are_counted() {
        let values = Values { mtu: 256, size: Some(10) };
        for (text, value) in [
            ("0", 0),
            ("mtu-1", 255),
            ("5*mtu+1", 1281),
            ("2 * size + 128", 148),
            ("mtu - size", 246),
        ] {
            assert_eq!(sum(text, values), Ok(value), "{text}");
        }
        for text in ["", "mtu+", "-1", "size-mtu", "1<<3", "9999999999*9999999999", "mtu mtu"] {
            assert!(sum(text, values).is_err(), "{text}");
        }
        assert!(sum("size", Values { mtu: 256, size: None }).is_err());
    }
}
