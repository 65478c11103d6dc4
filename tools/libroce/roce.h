/* libroce: RDMA for programs in C that know sockets.
 *
 * A listener accepts and a client connects. What goes over a connection is messages of any size,
 * whole and in order. A side publishes memory under a number, and its peer reads, writes and
 * changes it, while the program of that side does nothing. Devices are soft NICs at the IP
 * addresses of this machine, which need no hardware and no privilege, or RNICs.
 *
 *     cc program.c $(pkg-config --cflags --libs roce)
 *
 * Handles. Devices, listeners and connections are numbers, and no pointers: the library looks each
 * one up. A handle that was closed, or that never was one, is ROCE_EHANDLE, also if its place has
 * been taken by a new object. 0 is never a handle.
 *
 * Errors. A call returns a negative error number if it fails. roce_strerror() has a text for each
 * number, roce_last_error() the details of the call that failed last in the calling thread. A call
 * that fails changes nothing, unless it says so.
 *
 * Timeouts are milliseconds. 0 does not wait; ROCE_FOREVER, or any negative number, has no limit.
 * A call that waits for a peer that is gone fails with ROCE_ELOST, some seconds after the peer's
 * last sign of life (ROCE_KEEPALIVE_MS, ROCE_RETRIES).
 *
 * Threads. Every call may be made by any thread at any time, several on one handle, too. Messages
 * that several threads send are each whole, and so are messages that they receive. roce_close() in
 * one thread has calls of other threads on the same handle fail with ROCE_EHANDLE. No call may be
 * made from a signal handler.
 *
 * Memory. Each pointer is checked as well as can be: NULL is ROCE_EINVAL, memory that is not
 * mapped is ROCE_EFAULT. To that end the library has a handler for SIGSEGV and SIGBUS, which
 * passes on what is not its own.
 *
 * Processes. The handles of a process do not work in a child that it forked; the child opens its
 * own. On one machine each process has an IP address of its own, as 127.0.0.1 and 127.0.0.2: a
 * client takes a loopback address that is free. When the process ends by exit() or by a return
 * from main(), its connections are closed as roce_close() does it, within the linger time of the
 * slowest. _exit() and signals end it without that. */
#ifndef ROCE_H
#define ROCE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Handles. They are one kind of number; the names say what a call wants. */
typedef int64_t roce_device;
typedef int64_t roce_listener;
typedef int64_t roce_connection;

/* Errors. The text is that of roce_strerror(). */
#define ROCE_OK 0             /* success */
#define ROCE_EINVAL (-1)      /* an argument is not valid */
#define ROCE_EHANDLE (-2)     /* the handle is closed, or is none for this call */
#define ROCE_EFAULT (-3)      /* memory of the program is not mapped */
#define ROCE_ERANGE (-4)      /* the bytes are not within the memory */
#define ROCE_ETOOLONG (-5)    /* the message is too long */
#define ROCE_ETIMEDOUT (-6)   /* timed out */
#define ROCE_ECLOSED (-7)     /* the peer has closed the connection */
#define ROCE_EFINISHED (-8)   /* this side of the connection is finished */
#define ROCE_ELOST (-9)       /* the connection is lost */
#define ROCE_EPROTOCOL (-10)  /* the peer does not keep to the protocol */
#define ROCE_EREFUSED (-11)   /* the peer refused the connection */
#define ROCE_EFOREIGN (-12)   /* the peer is no program of this library */
#define ROCE_EADDRESS (-13)   /* the address cannot be used */
#define ROCE_EINUSE (-14)     /* another program has the address */
#define ROCE_EDEVICE (-15)    /* the device cannot be used */
#define ROCE_ENOTFOUND (-16)  /* there is nothing of this number */
#define ROCE_ENOMEM (-17)     /* there is no room for more */
#define ROCE_EUNDELIVERED (-18) /* closed, but not all messages were delivered */
#define ROCE_EIO (-19)        /* the operating system failed */
#define ROCE_EBUG (-20)       /* the library has a mistake of its own */

/* No limit, as a timeout. */
#define ROCE_FOREVER (-1)

/* Returns the text of an error number. It is constant. A number that is none has a text, too. */
const char *roce_strerror(int error);

/* Returns what was wrong with the call that failed last in this thread: one line, which names the
 * address, the number of bytes or the device. It is valid until the next call of this thread that
 * fails. An empty string if none has. */
const char *roce_last_error(void);

/* Returns the version of the library, as pkg-config knows it: "0.2.0". */
const char *roce_version(void);

/* Devices -------------------------------------------------------------------------------------- */

/* The device of a call that needs no particular one: a soft NIC at the address that a listener is
 * given, or at the address from which the peer is reached. */
#define ROCE_AUTO ((roce_device)0)

/* Opens a device.
 *
 * name: "udp:192.0.2.1" or "soft:eth0" is a soft NIC that needs no privilege, "raw:eth0" one on
 *   raw frames (CAP_NET_RAW), "verbs:mlx5_0" an RNIC of the kernel's, by libibverbs.
 *   "udp:192.0.2.1?loss=1%" has a bad network (docs/faults.md). NULL is ROCE_AUTO, as a handle
 *   whose options can be set.
 *
 * Returns a handle, or ROCE_EADDRESS, ROCE_EINUSE, ROCE_EDEVICE, ROCE_EINVAL, ROCE_EFAULT,
 * ROCE_ENOMEM. One process at a time can have an address, but for raw devices. */
roce_device roce_open(const char *name);

/* Returns the name of a device that this machine has.
 *
 * index: 0, 1, ... until the call returns ROCE_ENOTFOUND.
 * buf, len: gets the name, with a zero at its end, as far as there is room.
 *
 * Returns the length of the name without the zero; it was cut if that is not less than len. */
int roce_device_name(unsigned index, char *buf, size_t len);

/* Options of the connections that are made on a device from now on. The last number is the one of
 * an option that is not set. */
#define ROCE_RING 1         /* bytes of the peer's room for messages: 4096 to 2^26; 2^19 */
#define ROCE_MESSAGE_MAX 2  /* bytes of a message of the peer, at most; 2^30 */
#define ROCE_KEEPALIVE_MS 3 /* silence before the peer has to show that it is there; 1000 */
#define ROCE_RETRIES 4      /* retransmissions before a peer is lost: 0 to 7; 7 */
#define ROCE_LINGER_MS 5    /* time that roce_close() has to deliver messages; 2000 */

/* Sets an option. Returns 0, ROCE_EHANDLE, or ROCE_EINVAL if there is no such option or value. */
int roce_set(roce_device device, int option, uint64_t value);

/* Connections ---------------------------------------------------------------------------------- */

/* Listens.
 *
 * device: an open device, or ROCE_AUTO.
 * address: "192.0.2.1:7000", "[2001:db8::1]:7000", "localhost:7000". Port 0 is one that is free:
 *   roce_local_address() tells it. "0.0.0.0:7000" is all addresses of this machine that no other
 *   program has, with ROCE_AUTO.
 *
 * Returns a handle, or ROCE_EADDRESS, ROCE_EINUSE, ROCE_EDEVICE, ROCE_EINVAL, ROCE_EHANDLE,
 * ROCE_EFAULT, ROCE_ENOMEM. */
roce_listener roce_listen(roce_device device, const char *address);

/* Waits for the next connection. Peers that ask for a connection and do not go on hold up no
 * other.
 *
 * Returns a handle, or ROCE_ETIMEDOUT, ROCE_EHANDLE, ROCE_EDEVICE, ROCE_ENOMEM. */
roce_connection roce_accept(roce_listener listener, int timeout_ms);

/* Connects to a listener. Even with ROCE_FOREVER it takes no longer than 10 seconds.
 *
 * Returns a handle, or ROCE_ETIMEDOUT, ROCE_EREFUSED, ROCE_EFOREIGN, ROCE_EADDRESS, ROCE_EINUSE,
 * ROCE_EDEVICE, ROCE_EINVAL, ROCE_EHANDLE, ROCE_EFAULT, ROCE_ENOMEM. */
roce_connection roce_connect(roce_device device, const char *address, int timeout_ms);

/* Return the address and port of this side, or of the peer of a connection, as text: buf, len and
 * the value as those of roce_device_name(). ROCE_ENOTFOUND if the device knows none. */
int roce_local_address(int64_t listener_or_connection, char *buf, size_t len);
int roce_peer_address(roce_connection connection, char *buf, size_t len);

/* Closes a device, a listener or a connection. The handle is free afterwards, whatever is
 * returned.
 *
 * A connection: waits until all messages have arrived at the peer, and its program has taken large
 * ones, but not longer than ROCE_LINGER_MS. ROCE_EUNDELIVERED says that some have not, because of
 * the time or because the peer is gone, and roce_last_error() how many. Messages that were not
 * received are dropped. Published memory is withdrawn: the peer does not touch it after the call.
 * A listener: peers are refused. Connections that it accepted stay.
 * A device: listeners and connections on it stay. The address is free when they are closed, too.
 *
 * Returns 0, ROCE_EHANDLE, ROCE_EUNDELIVERED, or ROCE_ETIMEDOUT, ROCE_ELOST, ROCE_EPROTOCOL of a
 * peer that has all messages. */
int roce_close(int64_t handle);

/* Messages ------------------------------------------------------------------------------------- */

/* Sends a message. It waits while the peer's ring is full: a peer that does not receive holds up
 * the sender. When the call returns, the memory may change; the message is on its way, and
 * roce_close() tells whether it arrived.
 *
 * Returns 0, or ROCE_ETIMEDOUT (nothing is sent), ROCE_ETOOLONG, ROCE_ECLOSED, ROCE_EFINISHED,
 * ROCE_ELOST, ROCE_EINVAL, ROCE_EHANDLE, ROCE_EFAULT, ROCE_ENOMEM. */
int roce_send(roce_connection connection, const void *data, size_t len, int timeout_ms);

/* Receives the next message.
 *
 * buf, len: gets the message. If it is longer, the call returns ROCE_ETOOLONG, and the message
 *   stays the next one: roce_next() returns its length.
 *
 * Returns the length of the message, which may be 0, or ROCE_ETIMEDOUT, ROCE_ETOOLONG,
 * ROCE_ECLOSED (no message will come: the peer has finished or closed), ROCE_ELOST,
 * ROCE_EPROTOCOL, ROCE_EHANDLE, ROCE_EINVAL, ROCE_EFAULT. Messages that had arrived before the
 * connection was closed or lost are received first. */
int64_t roce_recv(roce_connection connection, void *buf, size_t len, int timeout_ms);

/* Waits for the next message, and returns its length without taking it. Errors as those of
 * roce_recv(). */
int64_t roce_next(roce_connection connection, int timeout_ms);

/* Tells the peer, behind all messages, that no other follows: its roce_recv() returns ROCE_ECLOSED
 * then. Messages of the peer can still be received. Waits while the peer's ring is full; after
 * ROCE_ETIMEDOUT the peer is told when it has room.
 *
 * Returns 0, or ROCE_ETIMEDOUT, ROCE_ECLOSED, ROCE_ELOST, ROCE_EHANDLE. */
int roce_finish(roce_connection connection, int timeout_ms);

/* Memory --------------------------------------------------------------------------------------- */

/* What the peer may do with published memory. */
#define ROCE_READ 1
#define ROCE_WRITE 2
#define ROCE_ATOMIC 4

/* Publishes memory of this program under a number, on one connection.
 *
 * id: any number. What was published under it before is withdrawn. At most 64 are published at a
 *   time.
 * memory, len: must stay mapped until it is withdrawn by roce_unpublish(), by another
 *   roce_publish() of the number, or by roce_close(). The peer may change it at any time.
 * rights: ROCE_READ, ROCE_WRITE, ROCE_ATOMIC, joined by |.
 *
 * Returns 0, or ROCE_EINVAL, ROCE_EHANDLE, ROCE_ENOMEM, ROCE_ELOST. */
int roce_publish(roce_connection connection, uint64_t id, void *memory, size_t len, int rights);

/* Withdraws memory. After the call the peer does not touch it; an operation on it that the peer
 * still begins ends the connection. Returns 0, ROCE_ENOTFOUND, ROCE_EHANDLE. */
int roce_unpublish(roce_connection connection, uint64_t id);

/* Memory of the peer. A program may keep it, and pass it to another part of itself. */
struct roce_remote {
    uint64_t addr;
    uint64_t len;
    uint32_t rkey;
    uint32_t reserved;
};

/* Finds memory that the peer has published on this connection, without the help of the peer's
 * program. ROCE_ENOTFOUND if there is none under the number yet.
 *
 * Returns 0, or ROCE_ENOTFOUND, ROCE_ETIMEDOUT, ROCE_ECLOSED, ROCE_ELOST, ROCE_EHANDLE,
 * ROCE_EINVAL, ROCE_EFAULT. */
int roce_lookup(roce_connection connection, uint64_t id, struct roce_remote *memory,
                int timeout_ms);

/* Read and write len bytes at an offset of the peer's memory. They return when that is done. What
 * is written is there before a message that is sent later. After ROCE_ETIMEDOUT bytes may still be
 * written.
 *
 * Return 0, or ROCE_ERANGE (the bytes are not within the memory), ROCE_ETOOLONG (more than 2^30
 * bytes at a time), ROCE_ETIMEDOUT, ROCE_ECLOSED, ROCE_ELOST, ROCE_EHANDLE, ROCE_EINVAL,
 * ROCE_EFAULT, ROCE_ENOMEM. An operation that the peer's NIC refuses, because the memory was
 * withdrawn or the rights do not allow it, ends the connection: ROCE_ELOST. */
int roce_read(roce_connection connection, const struct roce_remote *from, uint64_t offset,
              void *buf, size_t len, int timeout_ms);
int roce_write(roce_connection connection, const struct roce_remote *to, uint64_t offset,
               const void *data, size_t len, int timeout_ms);

/* Change the eight bytes at an offset of the peer's memory, a number in the peer's byte order,
 * atomically: add to it, or replace it by `desired` if it is `expected`. The address must be a
 * multiple of 8. *before, unless before is NULL, gets what it was. They return as roce_read()
 * does. */
int roce_fetch_add(roce_connection connection, const struct roce_remote *at, uint64_t offset,
                   uint64_t add, uint64_t *before, int timeout_ms);
int roce_compare_swap(roce_connection connection, const struct roce_remote *at, uint64_t offset,
                      uint64_t expected, uint64_t desired, uint64_t *before, int timeout_ms);

/* SnowRDMA ------------------------------------------------------------------------------------- */

/* The calls of SnowRDMA, for programs that have them. They are a layer over the calls above. An
 * RdmaConn or RdmaListener is a handle in the form of a pointer, which points nowhere: one that
 * was closed is an error. Each side has a buffer of RDMA_BUFFER_LEN bytes that its peer reads and
 * writes without the help of this side's program.
 *
 * Calls return RDMA_OK or RDMA_ERR, or a number of bytes; (size_t)-1 is an error, too.
 * rdmaLastError() is roce_last_error(). Callbacks are called by threads of the library, those of
 * one connection one after the other. A callback may close its own connection. Two callbacks that
 * close each other's connections wait for each other for ever. */
#define RDMA_OK 0
#define RDMA_ERR (-1)
#define RDMA_BUFFER_LEN (1024 * 1024)

typedef struct RdmaConn RdmaConn;
typedef struct RdmaListener RdmaListener;

typedef void (*RdmaRecvCallbackFunc)(RdmaConn *conn, void *data, size_t data_len);
typedef void (*RdmaConnectedCallbackFunc)(RdmaConn *conn);
typedef void (*RdmaDisconnectCallbackFunc)(RdmaConn *conn);
typedef void (*RdmaAcceptCallbackFunc)(RdmaConn *conn);

const char *rdmaLastError(void);

/* Server. Port 0 is one that is free: rdmaServerPort() says which. An accepted connection is
 * freed, and its handle with it, when it is closed by rdmaConnClose(), when its disconnect
 * callback has returned, when rdmaConnRecv() has returned (size_t)-1 since it has ended, or when
 * its listener is stopped. A connection without a receive callback ends only by one of these
 * calls. */
int rdmaServer(RdmaListener **listener, char *ip, int port);
int rdmaServerSetAcceptCallback(RdmaListener *listener, RdmaAcceptCallbackFunc func);
int rdmaServerPort(RdmaListener *listener);
int rdmaServerStart(RdmaListener *listener);
int rdmaServerStop(RdmaListener *listener);
void rdmaServerRelease(RdmaListener *listener);

/* Client. rdmaConnClose() waits until all messages have arrived, but not longer than two seconds,
 * and frees the connection. rdmaLastError() says what was not delivered. */
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
/* Without a receive callback: waits for a message. Returns its length, of which at most buf_len
 * bytes are copied; (size_t)-1 when the connection has ended. */
size_t rdmaConnRecv(RdmaConn *conn, void *buf, size_t buf_len);
/* The number that came with the message that was received last, or 0. */
uint32_t rdmaConnImm(RdmaConn *conn);

/* The peer's buffer, from its beginning. With imm_data, the peer receives an empty message with
 * that number afterwards. */
size_t rdmaConnWrite(RdmaConn *conn, const void *data, size_t data_len);
int rdmaConnWriteWithImm(RdmaConn *conn, uint32_t imm_data, const void *data, size_t data_len);
int rdmaConnRead(RdmaConn *conn, void *data_buf, size_t buf_len);
/* The own buffer. */
int rdmaConnReadOwn(RdmaConn *conn, size_t offset, void *buf, size_t buf_len);
int rdmaConnWriteOwn(RdmaConn *conn, size_t offset, const void *data, size_t data_len);

/* Memory of the program, which stays registered until the connection is closed, and must stay
 * mapped as long. */
int rdmaConnRegister(RdmaConn *conn, void *addr, size_t len, uint32_t *lkey, uint32_t *rkey);
int rdmaSyncWriteSignaled(RdmaConn *conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr,
                          uint32_t rkey, uint32_t length);
int rdmaSyncReadSignaled(RdmaConn *conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr,
                         uint32_t rkey, uint32_t length);

/* Physical addresses: no program without privilege can have them, and soft NICs know none. Each
 * returns RDMA_ERR, and rdmaLastError() says so. */
int rdmaPAWriteSignaled(RdmaConn *conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr,
                        uint32_t length);
int rdmaPAReadSignaled(RdmaConn *conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr,
                       uint32_t length);
int rdmaPASyncWriteSignaled(RdmaConn *conn, uint64_t local_addr, uint32_t lkey,
                            uint64_t remote_addr, uint32_t length);
int rdmaPASyncReadSignaled(RdmaConn *conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr,
                           uint32_t length);

#ifdef __cplusplus
}
#endif

#endif
