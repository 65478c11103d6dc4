//! A requester that goes back, told once: `analysis` chooses the likeliest cause, and `replay` asks
//! whether any is legal.
//!
//! - [`recovery`]: responses that make it go back, and where it went back to.
//! - [`causes`]: possible causes of a packet whose PSN was transmitted before.

pub(crate) mod causes;
pub(crate) mod recovery;
