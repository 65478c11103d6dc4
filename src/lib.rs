//! roce
pub mod capture;
pub mod decode;
pub mod time;
pub mod wire;
