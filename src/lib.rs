//! roce
pub mod time;
pub mod wire;
