//! Every bound of this part. Unreliable connections have those of
//! [`requester`](crate::replay::requester::limits).

/// Queue pairs whose Q_Key a SIDR_REP named. The oldest are forgotten first.
pub const QUEUE_PAIRS_MAX: usize = 16_384;
