/* RDMA for programs in C that know sockets: libroce.so, with the calls of SnowRDMA.
 *
 * A server has a listener, whose accept callback gets each new connection; a client has a connection. Messages are whole and in
 * order, of any size. Each side has a buffer of RDMA_BUFFER_LEN bytes that its peer reads and writes without the help of this
 * side's program.
 *
 * Devices are soft NICs at the IP addresses of this machine: no hardware and no privilege is needed. On one machine each process
 * has an address of its own, as 127.0.0.1 and 127.0.0.2; a client on loopback takes one that is free.
 *
 * Calls return RDMA_OK or RDMA_ERR, or a number of bytes; (size_t)-1 is an error, too. rdmaLastError() says what is wrong.
 * Callbacks are called by threads of the library, those of one connection one after the other.
 */
#ifndef ROCE_H
#define ROCE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RDMA_OK 0
#define RDMA_ERR (-1)
#define RDMA_BUFFER_LEN (1024 * 1024)

typedef struct RdmaConn RdmaConn;
typedef struct RdmaListener RdmaListener;

typedef void (*RdmaRecvCallbackFunc)(RdmaConn *conn, void *data, size_t data_len);
typedef void (*RdmaConnectedCallbackFunc)(RdmaConn *conn);
typedef void (*RdmaDisconnectCallbackFunc)(RdmaConn *conn);
typedef void (*RdmaAcceptCallbackFunc)(RdmaConn *conn);

/* What the last call of this thread that failed has to say. */
const char *rdmaLastError(void);

/* Server. Port 0 is one that is free: rdmaServerPort() says which. A connection lives until its listener is released. */
int rdmaServer(RdmaListener **listener, char *ip, int port);
int rdmaServerSetAcceptCallback(RdmaListener *listener, RdmaAcceptCallbackFunc func);
int rdmaServerPort(RdmaListener *listener);
int rdmaServerStart(RdmaListener *listener);
int rdmaServerStop(RdmaListener *listener);
void rdmaServerRelease(RdmaListener *listener);

/* Client. rdmaConnClose() waits until all messages have arrived, and frees a connection of a client. */
RdmaConn *rdmaConn(void);
int rdmaConnect(RdmaConn *conn, char *serverip, int port);
void rdmaConnClose(RdmaConn *conn);
/* Ends the callbacks of all connections of clients. */
void rdmaRuntimeStop(void);

/* Callbacks. They are set before rdmaConnect(), or in the accept callback. */
int rdmaConnSetRecvCallback(RdmaConn *conn, RdmaRecvCallbackFunc func);
int rdmaConnSetConnectedCallback(RdmaConn *conn, RdmaConnectedCallbackFunc func);
int rdmaConnSetDisconnectCallback(RdmaConn *conn, RdmaDisconnectCallbackFunc func);

/* Messages. rdmaConnSend() waits while the peer does not read. */
size_t rdmaConnSend(RdmaConn *conn, void *data, size_t data_len);
size_t rdmaConnSendWithImm(RdmaConn *conn, uint32_t imm_data, const void *data, size_t data_len);
/* Without a receive callback: waits for a message. Returns its length, of which at most buf_len bytes are copied; (size_t)-1
 * when the connection has ended. */
size_t rdmaConnRecv(RdmaConn *conn, void *buf, size_t buf_len);
/* The number that came with the message that was received last, or 0. */
uint32_t rdmaConnImm(RdmaConn *conn);

/* The peer's buffer, from its beginning. With imm_data, the peer receives an empty message with that number afterwards. */
size_t rdmaConnWrite(RdmaConn *conn, const void *data, size_t data_len);
int rdmaConnWriteWithImm(RdmaConn *conn, uint32_t imm_data, const void *data, size_t data_len);
int rdmaConnRead(RdmaConn *conn, void *data_buf, size_t buf_len);
/* The own buffer. */
int rdmaConnReadOwn(RdmaConn *conn, size_t offset, void *buf, size_t buf_len);
int rdmaConnWriteOwn(RdmaConn *conn, size_t offset, const void *data, size_t data_len);

/* Memory of the program, which stays registered until the connection is closed, and must stay mapped as long. */
int rdmaConnRegister(RdmaConn *conn, void *addr, size_t len, uint32_t *lkey, uint32_t *rkey);
int rdmaSyncWriteSignaled(RdmaConn *conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t rkey,
                          uint32_t length);
int rdmaSyncReadSignaled(RdmaConn *conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t rkey,
                         uint32_t length);

/* Physical addresses: no program without privilege can have them, and soft NICs know none. Each returns RDMA_ERR, and
 * rdmaLastError() says so. */
int rdmaPAWriteSignaled(RdmaConn *conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t length);
int rdmaPAReadSignaled(RdmaConn *conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t length);
int rdmaPASyncWriteSignaled(RdmaConn *conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t length);
int rdmaPASyncReadSignaled(RdmaConn *conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t length);

#ifdef __cplusplus
}
#endif

#endif
