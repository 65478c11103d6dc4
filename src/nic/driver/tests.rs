//! The driver, step by step, and in a world of its own: a program, a network, and every order in
//! which their steps can come.

mod interleavings;
mod programs;
mod steps;
mod world;
