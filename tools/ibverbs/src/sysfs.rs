//! What programs read of devices as files: answered here, because no kernel has such a device.

use std::ffi::{CStr, c_char, c_int};
use std::fs;
use std::ptr;

use roce::verbs::{Device as _, Guid, PortNum, PortState};

use crate::call::{Failed, Result, number};
use crate::device::Device;

/// The longest file that is read.
const FILE_MAX: usize = 4096;

/// Where sysfs is.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads a file, without the newline at its end; how many bytes it has.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_read_sysfs_file(
    directory: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    number(|| {
        if directory.is_null() || file.is_null() || buffer.is_null() {
            return Err(Failed::EINVAL);
        }
        // SAFETY: the program hands over texts.
        let directory =
            unsafe { CStr::from_ptr(directory) }.to_str().map_err(|_| Failed::EINVAL)?;
        // SAFETY: the program hands over texts.
        let file = unsafe { CStr::from_ptr(file) }.to_str().map_err(|_| Failed::EINVAL)?;
        let text = read(&format!("{directory}/{file}"))?;
        let bytes = text.trim_end_matches('\n').as_bytes();
        let length = bytes.len().min(size);
        // SAFETY: the program has room for so many bytes.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr().cast(), buffer, length) };
        if length < size {
            // SAFETY: there is room for one more.
            unsafe { buffer.wrapping_add(length).write(0) };
        }
        Ok(c_int::try_from(length).unwrap_or(c_int::MAX))
    })
}

/// What stands before a path if files of the system are not meant: `files.c` says so.
const SOFT: &str = "soft:";

/// A file of a soft device, or of the system.
fn read(path: &str) -> Result<String> {
    let (path, only_soft) = path.strip_prefix(SOFT).map_or((path, false), |path| (path, true));
    if let Some((device, rest)) = Device::at_path(path) {
        let words: Vec<&str> = rest.split('/').filter(|word| !word.is_empty()).collect();
        return soft_file(device, &words).ok_or(Failed(libc::ENOENT));
    }
    if only_soft {
        return Err(Failed(libc::ENOENT));
    }
    let mut bytes = fs::read(path)?;
    bytes.truncate(FILE_MAX);
    String::from_utf8(bytes).map_err(|_| Failed(libc::EILSEQ))
}

/// What a soft device has under its directory.
fn soft_file(device: &Device, path: &[&str]) -> Option<String> {
    let guid = || Guid(device.guid().to_ne_bytes()).to_string();
    Some(match path {
        ["node_type"] => "1: CA".to_owned(),
        ["fw_ver"] => env!("CARGO_PKG_VERSION").to_owned(),
        ["board_id" | "hca_type"] => "roce".to_owned(),
        ["hw_rev"] => "0".to_owned(),
        ["node_guid" | "sys_image_guid"] => guid(),
        ["node_desc"] => format!("{} ({})", device.name, device.spec),
        ["ibdev"] => device.name.clone(),
        ["abi_version"] => "1".to_owned(),
        ["ports", port, rest @ ..] if *port == PortNum::FIRST.to_string() => {
            return port_file(device, rest);
        }
        _ => return None,
    })
}

/// What its port has.
fn port_file(device: &Device, path: &[&str]) -> Option<String> {
    let gids = || {
        device.running().map(|nic| nic.gids()).or_else(|| Some(vec![device.spec.first_gid().ok()?]))
    };
    let indexed = |index: &str| gids()?.get(index.parse::<usize>().ok()?).copied();
    let port = || device.running()?.query_port().ok();
    Some(match path {
        ["link_layer"] => "Ethernet".to_owned(),
        ["state"] => {
            let state = port().map_or(PortState::Down, |port| port.state);
            format!("{}: {}", state.code(), state.name().trim_start_matches("IBV_PORT_"))
        }
        ["phys_state"] => match port()?.state {
            PortState::Active => "5: LinkUp".to_owned(),
            _ => "3: Disabled".to_owned(),
        },
        ["lid" | "sm_lid"] => "0x0".to_owned(),
        ["lid_mask_count" | "sm_sl"] => "0".to_owned(),
        ["cap_mask"] => format!("{:#010x}", port()?.port_cap_flags.bits()),
        ["rate"] => "2.5 Gb/sec (1X SDR)".to_owned(),
        ["pkeys", "0"] => "0xffff".to_owned(),
        ["gids", index] => gid_text(indexed(index)?.0),
        ["gid_attrs", "types", index] => indexed(index).map(|_| "RoCE v2".to_owned())?,
        ["gid_attrs", "ndevs", index] => {
            indexed(index)?;
            let running = device.running().and_then(|nic| nic.port().interface.clone());
            running.or_else(|| device.spec.interface().map(ToOwned::to_owned))?
        }
        _ => return None,
    })
}

/// An identifier as sysfs prints it: eight groups of four digits.
fn gid_text(gid: [u8; 16]) -> String {
    let (groups, _) = gid.as_chunks::<2>();
    let groups: Vec<String> = groups.iter().map(|[a, b]| format!("{a:02x}{b:02x}")).collect();
    groups.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_prints_as_in_sysfs() {
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[0xff, 0xff, 127, 0, 0, 1]);
        assert_eq!(gid_text(gid), "0000:0000:0000:0000:0000:ffff:7f00:0001");
    }
}
