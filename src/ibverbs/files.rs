//! The files that a kernel has for RDMA devices: one table of paths, from which every form of them
//! is made.
//!
//! Programs look for a device's files before they open it, and read there what kind of NIC it is.
//! No kernel has files for a soft NIC. `roce run` writes this table into a mount namespace, or into
//! a directory to which calls of libc are redirected; the library answers `ibv_read_sysfs_file`
//! from it. Both forms have the same files because both are written from here.
//!
//! ```text
//! /sys/class/infiniband/NAME            -> ../../devices/roce/NAME/infiniband/NAME
//! /sys/class/infiniband_verbs/uverbsN   -> ../../devices/roce/NAME/infiniband_verbs/uverbsN
//! /sys/devices/roce/NAME/               numa_node, net/INTERFACE: what a PCI device has above its RDMA device
//! /dev/infiniband/uverbsN               a character device
//! /dev/infiniband/rdma_cm               a character device, and what librdmacm reads of it:
//! /sys/class/misc/rdma_cm/              abi_version, dev
//! ```

pub mod hw_counters;

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::unix::fs::{
    DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, symlink,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::link::interface::speed;
use crate::link::{GidTable, Spec};
use crate::verbs::{GidType, Guid, LinkRate, PortAttr, PortState};
use crate::wire::Gid;

/// The directories that hold all of it. None of them has any other file.
pub const DIRECTORIES: [&str; 5] =
    [CLASS, "/sys/class/infiniband_verbs", "/sys/devices/roce", "/dev/infiniband", RDMA_CM];

/// The directory of the connection manager's device.
const RDMA_CM: &str = "/sys/class/misc/rdma_cm";

/// The file with the number of the connection manager's device.
pub const RDMA_CM_DEV_FILE: &str = "/sys/class/misc/rdma_cm/dev";

/// The file of the kernel's own device with the numbers of `rdma_cm`, where nothing covers it.
pub const KERNEL_RDMA_CM_DEV_FILE: &str = "/sys/devices/virtual/misc/rdma_cm/dev";

/// The number of the connection manager's device, unless the kernel has one with another number:
/// librdmacm asks the kernel for it, and takes no other.
pub const RDMA_CM_DEV: &str = "10:58";

/// The version of the connection manager's device.
const RDMA_CM_ABI_VERSION: &str = "4";

const CLASS: &str = "/sys/class/infiniband";

/// A file whose reads fail with EINVAL, as those of an empty row's attributes do: the speed that
/// loopback does not have.
const UNREADABLE: &str = "/sys/class/net/lo/speed";

/// Contents of the files of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFiles {
    /// The name of the device: `roce0`.
    pub name: String,
    /// The number of its character device, `uverbs0`.
    pub number: usize,
    /// Description of the device that it belongs to.
    pub description: String,
    /// Network interface of the device.
    pub interface: Option<String>,
    /// The state of its port.
    pub state: PortState,
    /// GID table.
    pub gids: GidTable,
    /// GUID: [`device_guid`] of the first GID that it had.
    pub guid: Guid,
}

/// A file, or what stands in its place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Node {
    /// A regular file with this text, without the newline at its end.
    Text(String),
    /// A regular file with a number, which programs add to: 0 until the first one does.
    Counter,
    /// A regular file that can be opened, but whose reads fail with EINVAL.
    Unreadable,
    /// A symbolic link to this path.
    Link(String),
    /// A character device, which programs look for and the library does not open.
    CharDevice,
}

impl DeviceFiles {
    /// The files of a device that no program has opened: those that it will have if its address is
    /// free.
    pub fn of_spec(spec: &Spec, name: &str, number: usize) -> Self {
        let interface = spec.find_interface();
        let gids = GidTable::new(&spec.gids().unwrap_or_default());
        let has_link =
            interface.as_ref().is_some_and(|interface| interface.up && interface.carrier);
        Self {
            name: name.to_owned(),
            number,
            description: format!("{name} ({spec})"),
            interface: interface.map(|interface| interface.name),
            state: if has_link { PortState::Active } else { PortState::Down },
            guid: device_guid(gids.row(0).map_or(Gid([0; 16]), |row| row.gid), number),
            gids,
        }
    }

    /// The device's own files, by path below `/sys/class/infiniband/NAME`.
    pub fn rdma_device(&self) -> Vec<(String, Node)> {
        let text = |path: &str, text: &str| (path.to_owned(), Node::Text(text.to_owned()));
        let guid = self.guid.to_string();
        let mut files = vec![
            text("board_id", "roce"),
            text("fw_ver", env!("CARGO_PKG_VERSION")),
            text("hca_type", "roce"),
            text("hw_rev", "0"),
            text("node_desc", &self.description),
            text("node_guid", &guid),
            text("node_type", "1: CA"),
            text("sys_image_guid", &guid),
            text("uevent", &format!("NAME={}", self.name)),
            link("device", &format!("../../../{}", self.name)),
            link("subsystem", "../../../../../class/infiniband"),
        ];
        let port = self.port();
        files.extend(port.into_iter().map(|(path, node)| (format!("ports/1/{path}"), node)));
        files
    }

    /// The files of its port.
    fn port(&self) -> Vec<(String, Node)> {
        let state = self.state.name().trim_start_matches("IBV_PORT_");
        let is_active = self.state == PortState::Active;
        let rate = LinkRate::of_ethernet(self.interface.as_deref().and_then(speed));
        let mut files: Vec<(String, Node)> = [
            ("cap_mask", format!("{:#010x}", PortAttr::default().port_cap_flags.bits())),
            ("lid", "0x0".to_owned()),
            ("lid_mask_count", "0".to_owned()),
            ("link_layer", "Ethernet".to_owned()),
            ("phys_state", if is_active { "5: LinkUp" } else { "3: Disabled" }.to_owned()),
            ("pkeys/0", "0xffff".to_owned()),
            ("rate", rate.to_string()),
            ("sm_lid", "0x0".to_owned()),
            ("sm_sl", "0".to_owned()),
            ("state", format!("{}: {state}", self.state.code())),
        ]
        .into_iter()
        .map(|(path, text)| (path.to_owned(), Node::Text(text)))
        .collect();
        files.extend(hw_counters::paths().map(|path| (path, Node::Counter)));
        for index in 0..self.gids.len() {
            let row = self.gids.row(index);
            let gid = row.map_or(Gid([0; 16]), |row| row.gid);
            let interface = self.interface.as_ref().filter(|_| row.is_some());
            let gid_type = row.map(|row| gid_type_text(row.kind).to_owned());
            files.extend([
                (format!("gids/{index}"), Node::Text(gid_text(gid))),
                (format!("gid_attrs/ndevs/{index}"), readable(interface.cloned())),
                (format!("gid_attrs/types/{index}"), readable(gid_type)),
            ]);
        }
        files
    }

    /// The files of its character device, by path below `/sys/class/infiniband_verbs/uverbsN`.
    pub fn verbs_device(&self) -> Vec<(String, Node)> {
        let minor = 192 + self.number;
        let text = |path: &str, text: String| (path.to_owned(), Node::Text(text));
        vec![
            text("abi_version", "1".to_owned()),
            text("dev", format!("231:{minor}")),
            text("ibdev", self.name.clone()),
            text(
                "uevent",
                format!("MAJOR=231\nMINOR={minor}\nDEVNAME=infiniband/uverbs{}", self.number),
            ),
            link("device", &format!("../../../{}", self.name)),
            link("subsystem", "../../../../../class/infiniband_verbs"),
        ]
    }

    /// All of its files, by absolute path.
    fn all(&self) -> Vec<(String, Node)> {
        let Self { name, number, .. } = self;
        let own = format!("/sys/devices/roce/{name}");
        let below = |directory: &str, files: Vec<(String, Node)>| -> Vec<(String, Node)> {
            files.into_iter().map(|(path, node)| (format!("{directory}/{path}"), node)).collect()
        };
        let mut all = vec![
            link(
                &format!("{CLASS}/{name}"),
                &format!("../../devices/roce/{name}/infiniband/{name}"),
            ),
            link(
                &format!("/sys/class/infiniband_verbs/uverbs{number}"),
                &format!("../../devices/roce/{name}/infiniband_verbs/uverbs{number}"),
            ),
            (format!("/dev/infiniband/uverbs{number}"), Node::CharDevice),
            // A NIC that is near no node in particular, as on machines with one node.
            (format!("{own}/numa_node"), Node::Text("-1".to_owned())),
            (format!("{own}/uevent"), Node::Text("DRIVER=roce".to_owned())),
        ];
        if let Some(interface) = &self.interface {
            let path = format!("{own}/net/{interface}");
            all.push(link(&path, &format!("/sys/class/net/{interface}")));
        }
        all.extend(below(&format!("{own}/infiniband/{name}"), self.rdma_device()));
        all.extend(below(&format!("{own}/infiniband_verbs/uverbs{number}"), self.verbs_device()));
        all
    }
}

/// The GUID of the device with this number whose first GID is `gid`: the lower half of the GID,
/// with the number in the middle. Two devices of one interface can have the same first GID, and
/// librdmacm tells devices apart by GUID.
pub fn device_guid(gid: Gid, number: usize) -> Guid {
    let [.., high, low] = number.to_be_bytes();
    let Gid([.., a, b, c, d, e, f, g, h]) = gid;
    Guid([a, b, c ^ high, d ^ low, e, f, g, h])
}

fn link(path: &str, to: &str) -> (String, Node) {
    (path.to_owned(), Node::Link(to.to_owned()))
}

fn readable(text: Option<String>) -> Node {
    text.map_or(Node::Unreadable, Node::Text)
}

/// A GID as sysfs prints it: eight groups of four digits.
fn gid_text(gid: Gid) -> String {
    let (groups, _) = gid.0.as_chunks::<2>();
    let groups: Vec<String> = groups.iter().map(|[a, b]| format!("{a:02x}{b:02x}")).collect();
    groups.join(":")
}

/// Returns the name of a GID type in sysfs.
fn gid_type_text(gid_type: GidType) -> &'static str {
    match gid_type {
        GidType::Ib | GidType::RoceV1 => "IB/RoCE v1",
        GidType::RoceV2 => "RoCE v2",
    }
}

/// The files of all devices of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// Every file by absolute path; directories are those that paths have.
    files: Vec<(String, Node)>,
}

impl Tree {
    /// The files of these devices.
    pub fn new(devices: &[DeviceFiles]) -> Self {
        let mut files: Vec<(String, Node)> = devices.iter().flat_map(DeviceFiles::all).collect();
        let abi = "/sys/class/infiniband_verbs/abi_version";
        files.push((abi.to_owned(), Node::Text("6".to_owned())));
        let number = fs::read_to_string(RDMA_CM_DEV_FILE);
        let number = number.unwrap_or_else(|_| RDMA_CM_DEV.to_owned()).trim().to_owned();
        files.extend([
            (RDMA_CM_DEV_FILE.to_owned(), Node::Text(number)),
            (format!("{RDMA_CM}/abi_version"), Node::Text(RDMA_CM_ABI_VERSION.to_owned())),
            ("/dev/infiniband/rdma_cm".to_owned(), Node::CharDevice),
        ]);
        Self { files }
    }

    /// Every file by absolute path.
    pub fn files(&self) -> &[(String, Node)] {
        &self.files
    }

    /// Writes the files below a root, and leaves those that are there already with the same
    /// content. A process that reads at the same time finds a file whole, before or after.
    ///
    /// A character device is written as a link to its [`stand_in`].
    pub fn write(&self, root: &Path) -> io::Result<()> {
        for directory in DIRECTORIES {
            make_directories(&below(root, directory))?;
        }
        let mut last = PathBuf::new();
        for (path, node) in &self.files {
            let path = below(root, path);
            let directory = path.parent().unwrap_or(root);
            if directory != last {
                make_directories(directory)?;
                directory.clone_into(&mut last);
            }
            node.write(&path)?;
        }
        Ok(())
    }

    /// Writes the files into a directory of their own, which is named for their content and stays,
    /// and returns its path. All programs with the same devices share it.
    pub fn write_shared(&self) -> io::Result<PathBuf> {
        let mut hasher = DefaultHasher::new();
        self.files.hash(&mut hasher);
        let root = private_directory()?.join(format!("{:016x}", hasher.finish()));
        self.write(&root)?;
        Ok(root)
    }
}

impl Node {
    fn write(&self, path: &Path) -> io::Result<()> {
        let text = match self {
            Self::Text(text) => text,
            Self::Counter if path.is_file() => return Ok(()),
            Self::Counter => "0",
            Self::Unreadable => return write_link(path, UNREADABLE),
            Self::Link(to) => return write_link(path, to),
            Self::CharDevice if is_char_device(path) => return Ok(()),
            Self::CharDevice => return write_link(path, stand_in()),
        };
        let line = format!("{text}\n");
        let is_file = fs::symlink_metadata(path).is_ok_and(|there| there.is_file());
        if is_file && fs::read(path).is_ok_and(|there| there == line.as_bytes()) {
            return Ok(());
        }
        replace(path, |new| {
            let mut file =
                fs::OpenOptions::new().write(true).create_new(true).mode(0o444).open(new)?;
            io::Write::write_all(&mut file, line.as_bytes())
        })
    }
}

/// Returns the device that stands for those of soft NICs where the library does not: one whose
/// writes fail. A program that reaches it, because it was started without the library, learns at
/// once that nothing answers.
pub fn stand_in() -> &'static str {
    let full = "/dev/full";
    if is_char_device(Path::new(full)) { full } else { "/dev/null" }
}

fn is_char_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|there| there.file_type().is_char_device())
}

fn write_link(path: &Path, to: &str) -> io::Result<()> {
    if fs::read_link(path).is_ok_and(|there| there == Path::new(to)) {
        return Ok(());
    }
    replace(path, |new| symlink(to, new))
}

/// Makes a file beside a path, then moves it there.
fn replace(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let new = path.with_file_name(format!(".{}-{count}", std::process::id()));
    make(&new).and_then(|()| fs::rename(&new, path)).inspect_err(|_| {
        let _ = fs::remove_file(&new);
    })
}

/// An absolute path, below a root.
fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// Makes a directory and those above it.
fn make_directories(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        make_directories(parent)?;
    }
    make_directory(path)
}

fn make_directory(path: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o755).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// The user whose files this process makes. Where /proc is not mounted, a file is made to find out.
fn own_user(temporary: &Path) -> io::Result<u32> {
    if let Ok(own) = fs::metadata("/proc/self") {
        return Ok(own.uid());
    }
    let probe = temporary.join(format!(".roce-user-{}", std::process::id()));
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&probe)?;
    let user = file.metadata().map(|made| made.uid());
    fs::remove_file(&probe)?;
    user
}

/// The variable by which `roce run --pcap` tells the library where to report a capture that cannot
/// be written: the number of its process, a colon, and the path of a datagram socket.
pub const CAPTURE_REPORT: &str = "ROCE_CAPTURE_REPORT";

/// The directory of this user for such trees: in the directory for temporary files, or in shared
/// memory where that cannot be written, as in containers with a read-only root. No other user can
/// write it.
pub fn private_directory() -> io::Result<PathBuf> {
    let temporary = std::env::temp_dir();
    private_directory_in(&temporary)
        .or_else(|error| private_directory_in(Path::new("/dev/shm")).map_err(|_| error))
}

fn private_directory_in(temporary: &Path) -> io::Result<PathBuf> {
    let temporary = fs::canonicalize(temporary)?;
    let user = own_user(&temporary)?;
    // Another user can have made the first.
    let names = [format!("roce-files-{user}"), format!("roce-files-{user}-{}", std::process::id())];
    for name in names {
        let path = temporary.join(name);
        make_directory(&path)?;
        let there = fs::symlink_metadata(&path)?;
        let is_own = there.is_dir() && there.uid() == user && there.mode() & 0o022 == 0;
        // It may be there from before on a file system that is read-only now.
        if is_own && rustix::fs::access(&path, rustix::fs::Access::WRITE_OK).is_ok() {
            return Ok(path);
        }
    }
    Err(io::Error::other(format!("{}: no directory there is this user's", temporary.display())))
}
