/* A process that ends, in one of several ways; its peer says what it received.
 *
 *   endings server ADDRESS     prints its address, then "N messages: ERROR" at the end
 *   endings sleeper ADDRESS    prints its address, accepts and does nothing
 *   endings HOW ADDRESS:PORT   sends as many messages as COUNT, and ends
 */
#include <signal.h>
#include <sys/wait.h>

#include "check.h"

#define COUNT 50
#define LENGTH 20000

static void serve(const char *address, int reads) {
    char text[64];
    roce_listener listener = roce_listen(ROCE_AUTO, address);
    CHECK(listener > 0);
    CHECK(roce_local_address(listener, text, sizeof text) > 0);
    printf("%s\n", text);
    fflush(stdout);
    roce_connection connection = roce_accept(listener, SOON);
    CHECK(connection > 0);
    if (!reads) {
        pause();
    }
    static char message[LENGTH];
    int count = 0;
    int64_t len;
    while ((len = roce_recv(connection, message, sizeof message, SOON)) == LENGTH) {
        count++;
    }
    printf("%d messages: %s\n", count, roce_strerror((int)len));
    roce_close(connection);
    roce_close(listener);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    if (strcmp(argv[1], "server") == 0) {
        serve(argv[2], 1);
        return 0;
    }
    if (strcmp(argv[1], "sleeper") == 0) {
        serve(argv[2], 0);
        return 0;
    }
    roce_device device = roce_open(NULL);
    CHECK(roce_set(device, ROCE_LINGER_MS, strcmp(argv[1], "undelivered") ? 20000 : 200) == 0);
    roce_connection connection = roce_connect(device, argv[2], SOON);
    CHECK(connection > 0);
    static char message[LENGTH];
    if (strcmp(argv[1], "undelivered") == 0) {
        /* Too large for the ring of a peer that does not read. */
        static char large[4000000];
        CHECK(roce_send(connection, large, sizeof large, SOON) == ROCE_OK);
        CHECK(roce_close(connection) == ROCE_EUNDELIVERED);
        CHECK(strstr(roce_last_error(), "1 message") != NULL);
        CHECK(roce_close(connection) == ROCE_EHANDLE);
        puts("undelivered");
        return 0;
    }
    for (int i = 0; i < COUNT; i++) {
        CHECK(roce_send(connection, message, LENGTH, SOON) == ROCE_OK);
    }
    if (strcmp(argv[1], "closes") == 0) {
        CHECK(roce_close(connection) == ROCE_OK);
    } else if (strcmp(argv[1], "exits") == 0) {
        exit(0);
    } else if (strcmp(argv[1], "forks") == 0) {
        /* The child has none of the handles, and its end is not that of the connection. */
        pid_t child = fork();
        if (child == 0) {
            exit(roce_send(connection, message, LENGTH, 0) == ROCE_EHANDLE ? 0 : 1);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        CHECK(roce_send(connection, message, LENGTH, SOON) == ROCE_OK);
    } else if (strcmp(argv[1], "dies") == 0) {
        kill(getpid(), SIGKILL);
    }
    return 0;
}
