//! Expressions, and one instance for each combination of what a scenario varies.

use serde::{Deserialize, Serialize};

use super::memory;
use super::scenario::limits::{NAME_MAX, TRAFFIC_MAX};
use super::scenario::{self, Action, Scenario, Step};
use crate::control::text;

/// A number, or a sum of products of numbers, `size` and `mtu`: `5*mtu+1`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Expr {
    /// A number.
    Number(u64),
    /// An expression, as text.
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

/// Values of the variables in expressions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Values {
    /// The payload of a packet.
    pub mtu: u64,
    /// The length of messages.
    pub size: Option<u64>,
}

impl Expr {
    /// Evaluates the expression.
    pub fn value(&self, values: Values) -> Result<u64, String> {
        match self {
            Self::Number(number) if *number > VALUE_MAX.unsigned_abs() => {
                Err(format!("{number} is more than {VALUE_MAX}"))
            }
            Self::Number(number) => Ok(*number),
            Self::Text(text) => sum(text, values),
        }
    }
}

/// Maximum value of an expression: far more than a buffer has.
const VALUE_MAX: i64 = 1 << 40;

pub(super) fn sum(text: &str, values: Values) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no number from 0 to {VALUE_MAX}");
    let mut total = 0_i64;
    let mut rest = text;
    let mut sign = 1;
    loop {
        let end = rest.find(['+', '-']).unwrap_or(rest.len());
        let (term, behind) = rest.split_at(end);
        let product = product(term, values)?;
        total = product
            .checked_mul(sign)
            .and_then(|term| total.checked_add(term))
            .filter(|total| total.abs() <= VALUE_MAX)
            .ok_or_else(wrong)?;
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
    /// Operation that a step `op` posts.
    pub op: Action,
}

impl Instance {
    /// Returns the values of the variables in its expressions.
    pub const fn values(&self) -> Values {
        Values { mtu: self.mtu as u64, size: Some(self.size) }
    }

    /// Whether it is sound: what holds for one that was read from a file must hold for one from
    /// another machine.
    pub fn check(&self) -> Result<(), String> {
        scenario::check(&self.scenario)
            .and_then(|()| self.check_choice())
            .map_err(|text| text::printable(&text, MESSAGE_MAX))
    }

    /// Whether what was chosen for it is sound, and everything that depends on it.
    fn check_choice(&self) -> Result<(), String> {
        if self.name.len() > INSTANCE_NAME_MAX || !self.name.chars().all(crate::decode::is_plain) {
            return Err(format!("name: `{}` is no name", text::printable(&self.name, NAME_MAX)));
        }
        check_mtu(self.mtu)?;
        Expr::Number(self.size).value(self.values()).map_err(|text| format!("size: {text}"))?;
        evaluate(self)
    }
}

/// Maximum length of the name of an instance, in bytes: that of its scenario, and what was chosen.
const INSTANCE_NAME_MAX: usize = 4 * NAME_MAX;

/// Maximum length of what is said about an unsound scenario, in characters.
const MESSAGE_MAX: usize = 1000;

fn check_mtu(mtu: u32) -> Result<(), String> {
    if matches!(mtu, 256 | 512 | 1024 | 2048 | 4096) {
        return Ok(());
    }
    Err(format!("mtu: {mtu} is none of 256, 512, 1024, 2048, 4096"))
}

/// Maximum number of instances of one scenario.
const INSTANCES_MAX: usize = 1000;

/// All instances of a scenario.
pub(super) fn expand(scenario: Scenario) -> Result<Vec<Instance>, String> {
    scenario::check(&scenario).map_err(|text| text::printable(&text, MESSAGE_MAX))?;
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
            check_mtu(mtu)?;
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
                instance.check()?;
                all.push(instance);
            }
        }
    }
    Ok(all)
}

/// Whether every expression can be counted, and what they come to is within its bound.
fn evaluate(instance: &Instance) -> Result<(), String> {
    let values = instance.values();
    memory::check(instance)?;
    let mut traffic = 0_u64;
    for (at, step) in instance.scenario.steps.iter().enumerate() {
        let count = |name: &str, expr: &Expr| {
            expr.value(values).map_err(|text| format!("steps[{at}].{name}: {text}"))
        };
        for (name, expr) in [("at", &step.at), ("to", &step.to)] {
            expr.as_ref().map_or(Ok(0), |expr| count(name, expr))?;
        }
        let mut bytes = step.len.as_ref().map_or(Ok(instance.size), |len| count("len", len))?;
        if let Some(sges) = &step.sges {
            bytes = sges.iter().map(|len| count("sges", len)).sum::<Result<u64, String>>()?;
        }
        let posts = u64::from(step.times.unwrap_or(1));
        traffic = traffic.saturating_add(posts.saturating_mul(bytes.min(reach(instance, step)?)));
    }
    if traffic > TRAFFIC_MAX {
        return Err(format!(
            "steps: {traffic} bytes are posted, which are more than {TRAFFIC_MAX}"
        ));
    }
    for side in super::Side::BOTH {
        for (at, done) in instance.scenario.expect.of(side).iter().enumerate() {
            let len = done.byte_len.as_ref().map_or(Ok(0), |len| len.value(values));
            len.map_err(|text| format!("expect.{side}[{at}].byte_len: {text}"))?;
        }
    }
    Ok(())
}

/// Returns the maximum number of bytes that a step can move: more than its buffer has are refused
/// by every device.
fn reach(instance: &Instance, step: &Step) -> Result<u64, String> {
    let Some((side, action)) = step.who() else { return Ok(0) };
    if matches!(action, Action::Wait | Action::Sleep | Action::See | Action::Modify) {
        return Ok(0);
    }
    let name = step.buffer.as_deref().unwrap_or(scenario::MAIN);
    memory::len_of(instance, side, name)
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
        for text in [
            "",
            "mtu+",
            "-1",
            "size-mtu",
            "1<<3",
            "9999999999*9999999999",
            "mtu mtu",
            "1099511627776+1",
        ] {
            assert!(sum(text, values).is_err(), "{text}");
        }
        assert!(sum("size", Values { mtu: 256, size: None }).is_err());
    }
}
