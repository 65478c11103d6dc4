//! Mutex and condition variable of C's threads, as opaque room inside the structures.
#![allow(unsafe_code, reason = "structures of C that may be zero")]

use super::layout::Zero;

/// A lock, as C declares it: `pthread_mutex_t`. Zero is one that is not held.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_mutex([usize; size_of::<libc::pthread_mutex_t>() / size_of::<usize>()]);

/// A condition, as C declares it: `pthread_cond_t`. Zero is one without waiters.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_cond([usize; size_of::<libc::pthread_cond_t>() / size_of::<usize>()]);

const _: () = assert!(size_of::<ibv_mutex>() == size_of::<libc::pthread_mutex_t>());
const _: () = assert!(align_of::<ibv_mutex>() == align_of::<libc::pthread_mutex_t>());
const _: () = assert!(size_of::<ibv_cond>() == size_of::<libc::pthread_cond_t>());
const _: () = assert!(align_of::<ibv_cond>() == align_of::<libc::pthread_cond_t>());

// SAFETY: numbers, which may be zero.
unsafe impl Zero for ibv_mutex {}

// SAFETY: numbers, which may be zero.
unsafe impl Zero for ibv_cond {}
