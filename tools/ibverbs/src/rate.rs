//! Rates: the code of each, as a multiple of 2.5 Gb/s and in Mb/s.

use std::ffi::{c_int, c_uint};

use roce::ibverbs::*;

/// Code, multiple of 2.5 Gb/s if it is one, Mb/s as `libibverbs` counts them: with the overhead of
/// the line's code.
const RATES: [(u32, Option<c_int>, c_int); 23] = [
    (IBV_RATE_2_5_GBPS, Some(1), 2500),
    (IBV_RATE_5_GBPS, Some(2), 5000),
    (IBV_RATE_10_GBPS, Some(4), 10000),
    (IBV_RATE_20_GBPS, Some(8), 20000),
    (IBV_RATE_30_GBPS, Some(12), 30000),
    (IBV_RATE_40_GBPS, Some(16), 40000),
    (IBV_RATE_60_GBPS, Some(24), 60000),
    (IBV_RATE_80_GBPS, Some(32), 80000),
    (IBV_RATE_120_GBPS, Some(48), 120_000),
    (IBV_RATE_14_GBPS, None, 14062),
    (IBV_RATE_56_GBPS, None, 56250),
    (IBV_RATE_112_GBPS, None, 112_500),
    (IBV_RATE_168_GBPS, None, 168_750),
    (IBV_RATE_25_GBPS, None, 25781),
    (IBV_RATE_100_GBPS, None, 103_125),
    (IBV_RATE_200_GBPS, None, 206_250),
    (IBV_RATE_300_GBPS, None, 309_375),
    (IBV_RATE_28_GBPS, Some(11), 28125),
    (IBV_RATE_50_GBPS, Some(20), 53125),
    (IBV_RATE_400_GBPS, Some(160), 425_000),
    (IBV_RATE_600_GBPS, Some(240), 637_500),
    (IBV_RATE_800_GBPS, Some(320), 850_000),
    (IBV_RATE_1200_GBPS, Some(480), 1_275_000),
];

/// A rate as a multiple of 2.5 Gb/s, or -1.
#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mult(rate: c_uint) -> c_int {
    RATES
        .iter()
        .find(|(code, ..)| *code == rate)
        .and_then(|(_, multiple, _)| *multiple)
        .unwrap_or(-1)
}

/// The rate that is a multiple of 2.5 Gb/s, or the highest.
#[unsafe(no_mangle)]
extern "C" fn mult_to_ibv_rate(multiple: c_int) -> c_uint {
    RATES
        .iter()
        .find(|(_, known, _)| *known == Some(multiple))
        .map_or(IBV_RATE_MAX, |(code, ..)| *code)
}

/// A rate in Mb/s, or -1.
#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mbps(rate: c_uint) -> c_int {
    RATES.iter().find(|(code, ..)| *code == rate).map_or(-1, |(.., mbps)| *mbps)
}

/// The rate with this number of Mb/s, or the highest.
#[unsafe(no_mangle)]
extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_uint {
    RATES.iter().find(|(.., known)| *known == mbps).map_or(IBV_RATE_MAX, |(code, ..)| *code)
}
