// The GID table of a device with one address: where programs find it, and what is refused. And the
// name of a device.
#include "verbs.h"

// No header has it, but programs call it.
int ibv_read_sysfs_file(const char *directory, const char *file, char *text, size_t size);

// What a device has to say in a file: 0 if it is this, the error number of reading it, or less than
// none.
static int says(const char *file, const char *wanted) {
    char text[64] = {0};
    if (ibv_read_sysfs_file("/sys/class/infiniband/mlx5_0/ports/1", file, text, sizeof text) < 0)
        return errno;
    return strcmp(text, wanted) == 0 ? 0 : -1;
}

static void table(struct ibv_context *context) {
    struct ibv_gid_entry entries[16], entry;
    CHECK(ibv_query_gid_table(context, entries, 3, 0) == -EINVAL);
    CHECK(ibv_query_gid_table(context, entries, 16, 0) == 4);
    struct ibv_port_attr port;
    CHECK(!ibv_query_port(context, 1, &port) && port.gid_tbl_len == 16);
    const uint8_t own[16] = {[10] = 0xff, 0xff, 127, 9, 41, 1}, none[16] = {0};
    for (int index = 0; index < 16; index++) {
        union ibv_gid gid;
        CHECK(!ibv_query_gid(context, 1, index, &gid));
        CHECK(!memcmp(&gid, index < 4 ? own : none, 16));
        if (index >= 4) {
            CHECK(ibv_query_gid_ex(context, 1, index, &entry, 0) == ENODATA);
            continue;
        }
        CHECK(!ibv_query_gid_ex(context, 1, index, &entry, 0) && !memcmp(&entry.gid, own, 16));
        CHECK(entry.gid_type == (index == 2 ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_ROCE_V2));
        CHECK(!memcmp(&entry, &entries[index], sizeof entry) && entry.gid_index == (uint32_t)index);
        CHECK(entry.ndev_ifindex != 0);
    }
    union ibv_gid gid;
    CHECK(ibv_query_gid(context, 1, 16, &gid) == -1 && errno == EINVAL);
}

// As a kernel has them: files for all entries, of which those that are empty cannot be read.
static void files(void) {
    for (int round = 0; round < 2; round++) {
        CHECK(says("gid_attrs/types/0", "RoCE v2") == 0 && says("gid_attrs/types/1", "RoCE v2") == 0);
        CHECK(says("gid_attrs/types/2", "IB/RoCE v1") == 0 && says("gid_attrs/types/3", "RoCE v2") == 0);
        CHECK(says("gids/3", "0000:0000:0000:0000:0000:ffff:7f09:2901") == 0);
        CHECK(says("gids/4", "0000:0000:0000:0000:0000:0000:0000:0000") == 0);
        CHECK(says("gid_attrs/types/4", "") == EINVAL && says("gid_attrs/ndevs/15", "") == EINVAL);
        CHECK(says("gid_attrs/ndevs/0", "lo") == 0 && says("gid_attrs/ndevs/2", "lo") == 0);
        CHECK(says("gids/16", "") == ENOENT && says("gid_attrs/types/16", "") == ENOENT);
        CHECK(says("state", "4: ACTIVE") == 0 && says("phys_state", "5: LinkUp") == 0);
    }
}

static int to_rtr(struct end *end, const struct address *to, uint8_t index) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    CHECK(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE));
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1};
    CHECK(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = to->qpn,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = to->gid, .sgid_index = index, .hop_limit = 1}},
    };
    return ibv_modify_qp(end->qp, &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static void use(struct end *end, const struct address *to) {
    const int wanted[] = {0, 0, EOPNOTSUPP, 0, EINVAL};
    for (int index = 0; index < 5; index++) {
        CHECK(to_rtr(end, to, index) == wanted[index]);
        if (wanted[index])
            continue;
        struct ibv_qp_attr attr;
        struct ibv_qp_init_attr init;
        CHECK(!ibv_query_qp(end->qp, &attr, IBV_QP_AV, &init) && attr.ah_attr.grh.sgid_index == index);
    }
    for (int index = 0; index < 5; index++) {
        struct ibv_ah_attr attr = {
            .is_global = 1, .port_num = 1, .grh = {.dgid = to->gid, .sgid_index = index, .hop_limit = 1}};
        struct ibv_ah *ah = ibv_create_ah(end->pd, &attr);
        CHECK(ah ? wanted[index] == 0 : errno == wanted[index]);
        CHECK(!ah || !ibv_destroy_ah(ah));
    }
}

int main(void) {
    // The files of a device that is not open are the same.
    files();
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(count == 2 && !strcmp(ibv_get_device_name(list[0]), "mlx5_0"));
    CHECK(!strcmp(ibv_get_device_name(list[1]), "roce1"));
    ibv_free_device_list(list);
    static struct end ends[2];
    struct address addresses[2];
    for (int end = 0; end < 2; end++)
        addresses[end] = make_end(&ends[end], end);
    table(ends[0].context);
    files();
    use(&ends[0], &addresses[1]);
    for (int end = 0; end < 2; end++)
        destroy_end(&ends[end]);
    puts("fine");
}
