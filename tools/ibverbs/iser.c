// Writes a file to a logical unit by libiscsi, reads it back and compares: for
// tools/ibverbs/programs.
//
//   iser URL FILE
#include <iscsi/iscsi.h>
#include <iscsi/scsi-lowlevel.h>

#include <stdio.h>
#include <string.h>

enum { BLOCK = 512, BLOCKS = 64 };

static int fail(struct iscsi_context *iscsi, const char *what) {
    fprintf(stderr, "%s: %s\n", what, iscsi_get_error(iscsi));
    return 1;
}

static int is_good(const struct scsi_task *task) {
    return task && task->status == SCSI_STATUS_GOOD;
}

int main(int count, char **words) {
    FILE *file = count == 3 ? fopen(words[2], "rb") : NULL;
    struct iscsi_context *iscsi = iscsi_create_context("iqn.2026-01.org.example:initiator");
    struct iscsi_url *url = file && iscsi ? iscsi_parse_full_url(iscsi, words[1]) : NULL;
    if (!url)
        return fprintf(stderr, "usage: iser URL FILE\n"), 2;
    iscsi_set_session_type(iscsi, ISCSI_SESSION_NORMAL);
    iscsi_set_header_digest(iscsi, ISCSI_HEADER_DIGEST_NONE);
    if (iscsi_full_connect_sync(iscsi, url->portal, url->lun) != 0)
        return fail(iscsi, "login");
    unsigned char chunk[BLOCK * BLOCKS];
    unsigned at = 0;
    for (size_t bytes; (bytes = fread(chunk, 1, sizeof chunk, file)) > 0; at += BLOCKS) {
        struct scsi_task *task = iscsi_write10_sync(iscsi, url->lun, at, chunk, bytes, BLOCK, 0, 0, 0, 0, 0);
        if (!is_good(task))
            return fail(iscsi, "write");
        scsi_free_scsi_task(task);
    }
    rewind(file);
    at = 0;
    for (size_t bytes; (bytes = fread(chunk, 1, sizeof chunk, file)) > 0; at += BLOCKS) {
        struct scsi_task *task = iscsi_read10_sync(iscsi, url->lun, at, bytes, BLOCK, 0, 0, 0, 0, 0);
        if (!is_good(task))
            return fail(iscsi, "read");
        if (task->datain.size != (int)bytes || memcmp(task->datain.data, chunk, bytes) != 0)
            return fprintf(stderr, "block %u differs\n", at), 1;
        scsi_free_scsi_task(task);
    }
    iscsi_logout_sync(iscsi);
    iscsi_destroy_url(url);
    iscsi_destroy_context(iscsi);
    printf("%u KiB written, read and compared\n", at / 2);
    return 0;
}
