//! Status codes of completions: `ibv_wc_status`.

use super::codes::codes;

codes! {
    /// Status of a completion: `ibv_wc_status`.
    WcStatus, "IBV_WC_" {
        /// Success.
        Success = 0, "SUCCESS", "success";
        /// The message does not fit the local buffer, or is longer than may be sent.
        LocLenErr = 1, "LOC_LEN_ERR", "local length error";
        /// The queue pair cannot do what was asked.
        LocQpOpErr = 2, "LOC_QP_OP_ERR", "local QP operation error";
        /// Error of the reliable datagram service.
        LocEecOpErr = 3, "LOC_EEC_OP_ERR", "local EE context operation error";
        /// A local buffer is not registered for this use.
        LocProtErr = 4, "LOC_PROT_ERR", "local protection error";
        /// The queue pair was, or came, in error before the work was done.
        WrFlushErr = 5, "WR_FLUSH_ERR", "Work Request Flushed Error";
        /// A memory window could not be bound.
        MwBindErr = 6, "MW_BIND_ERR", "memory management operation error";
        /// The responder answered something that was not asked.
        BadRespErr = 7, "BAD_RESP_ERR", "bad response error";
        /// A peer's write was refused by local memory.
        LocAccessErr = 8, "LOC_ACCESS_ERR", "local access error";
        /// The responder found no sense in the request.
        RemInvReqErr = 9, "REM_INV_REQ_ERR", "remote invalid request error";
        // Rule: T-42.
        /// The responder's memory may not be reached so.
        RemAccessErr = 10, "REM_ACCESS_ERR", "remote access error";
        /// The responder failed.
        RemOpErr = 11, "REM_OP_ERR", "remote operation error";
        /// No response came, whatever the number of retransmissions.
        RetryExcErr = 12, "RETRY_EXC_ERR", "transport retry counter exceeded";
        /// The responder had no receive buffer, however often it was tried.
        RnrRetryExcErr = 13, "RNR_RETRY_EXC_ERR", "RNR retry counter exceeded";
        /// Error of the reliable datagram service.
        LocRddViolErr = 14, "LOC_RDD_VIOL_ERR", "local RDD violation error";
        /// Error of the reliable datagram service.
        RemInvRdReqErr = 15, "REM_INV_RD_REQ_ERR", "remote invalid RD request";
        /// The responder gave the operation up.
        RemAbortErr = 16, "REM_ABORT_ERR", "aborted error";
        /// Error of the reliable datagram service.
        InvEecnErr = 17, "INV_EECN_ERR", "invalid EE context number";
        /// Error of the reliable datagram service.
        InvEecStateErr = 18, "INV_EEC_STATE_ERR", "invalid EE context state";
        /// The device broke down.
        FatalErr = 19, "FATAL_ERR", "fatal error";
        /// A response took too long.
        RespTimeoutErr = 20, "RESP_TIMEOUT_ERR", "response timeout error";
        /// Error that no other status describes.
        GeneralErr = 21, "GENERAL_ERR", "general error";
        /// Tag matching failed.
        TmErr = 22, "TM_ERR", "TM error";
        /// Tag matching leaves the rendezvous to software.
        TmRndvIncomplete = 23, "TM_RNDV_INCOMPLETE", "TM software rendezvous";
    }
}

impl WcStatus {
    /// Whether the work was done.
    #[inline]
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Success)
    }
}
