//! A hunt for mutations that a peer does not survive.

use super::minimize::minimize;
use super::mutate::{MutateSeed, MutateSpec, Mutation, Reach};
use super::script::Script;
use super::sequence::sequence;
use super::target::Target;

/// State of a peer after a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Life {
    /// Alive: does what it is asked to.
    Alive,
    /// Dead: does not answer any more, or wrongly.
    Dead(String),
    /// Alive, and an answer of it breaks a rule.
    BrokeRule(String),
}

impl Life {
    fn is_like(&self, other: &Self) -> bool {
        core::mem::discriminant(self) == core::mem::discriminant(other)
    }
}

/// A peer that is sent requests which may kill it.
pub trait Peer {
    /// Reason why nothing can be said about it.
    type Error;

    /// Sends some requests of a script, mutated, on a new connection, and sees whether the peer
    /// lives.
    fn attempt(
        &mut self,
        script: &Script,
        kept: &[usize],
        mutations: &[Mutation],
    ) -> Result<Life, Self::Error>;

    /// Brings a dead peer back to life; whether that is possible.
    fn revive(&mut self) -> Result<bool, Self::Error>;

    /// Whether the search for a smaller sequence has taken long enough.
    fn gives_up(&self) -> bool {
        false
    }
}

/// A run that a peer did not survive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kill {
    /// The seed of the run.
    pub seed: u64,
    /// Number of the script.
    pub script: usize,
    /// State of the peer.
    pub life: Life,
    /// The smallest sequence of requests that does it.
    pub kept: Vec<usize>,
    /// Mutations.
    pub mutations: Vec<Mutation>,
    /// Whether the same requests do it again.
    pub is_reproduced: bool,
}

/// Options of a hunt.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HuntOptions {
    /// Fields and actions.
    pub spec: MutateSpec,
    /// Whether every packet is mutated, or one.
    pub per_packet: bool,
    /// Headers that may be changed.
    pub reach: Reach,
}

impl HuntOptions {
    /// Mutates one packet at a time, in the headers that `reach` names.
    pub fn new(spec: MutateSpec, reach: Reach) -> Self {
        Self { spec, per_packet: false, reach }
    }
}

/// The mutations of a seed, and the script that they are for.
pub fn plan(
    scripts: &[Script],
    options: &HuntOptions,
    seed: u64,
) -> Option<(usize, Vec<Mutation>)> {
    let mut random = MutateSeed::new(seed);
    let index = random.below(scripts.len());
    let script = scripts.get(index)?;
    let all: Vec<usize> = (0..script.requests().count()).collect();
    let frames = sequence(script, &Target::default(), &all);
    let mutations = if options.per_packet {
        options.spec.choose_each(&mut random, &frames, options.reach)
    } else {
        options.spec.choose(&mut random, &frames, options.reach).into_iter().collect()
    };
    (!mutations.is_empty()).then_some((index, mutations))
}

/// Runs one seed. If the peer does not survive it, finds the smallest sequence that does it;
/// nothing if it survives, or if the spec fits no packet.
pub fn hunt<P: Peer>(
    peer: &mut P,
    scripts: &[Script],
    options: &HuntOptions,
    seed: u64,
) -> Result<Option<Kill>, P::Error> {
    let Some((index, mutations)) = plan(scripts, options, seed) else { return Ok(None) };
    let Some(script) = scripts.get(index) else { return Ok(None) };
    let all: Vec<usize> = (0..script.requests().count()).collect();
    let life = peer.attempt(script, &all, &mutations)?;
    if life == Life::Alive {
        return Ok(None);
    }
    let mut kill = Kill {
        seed,
        script: index,
        life: life.clone(),
        kept: all,
        mutations,
        is_reproduced: false,
    };
    let mut is_possible = true;
    let mut fails = |peer: &mut P, kept: &[usize], mutations: &[Mutation]| {
        if !is_possible || peer.gives_up() {
            return Ok(false);
        }
        let found = peer.attempt(script, kept, mutations)?;
        if matches!(found, Life::Dead(_)) {
            is_possible = peer.revive()?;
        }
        Ok(found.is_like(&life))
    };
    if matches!(kill.life, Life::Dead(_)) && !peer.revive()? {
        return Ok(Some(kill));
    }
    kill.is_reproduced = fails(peer, &kill.kept, &kill.mutations)?;
    if kill.is_reproduced {
        // Which of the mutations, then which of the requests.
        let mutations = minimize(&kill.mutations, |part| fails(peer, &kill.kept, part))?;
        kill.kept = minimize(&kill.kept, |part| fails(peer, part, &mutations))?;
        kill.mutations = mutations;
        kill.mutations.retain(|mutation| kill.kept.contains(&mutation.at));
    }
    Ok(Some(kill))
}
