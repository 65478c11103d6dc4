//! Memory that may not be there cannot be reached safely on this system; nobody can make such a region.

pub(super) fn read(_: *mut u8, _: &mut [u8]) -> Option<()> {
    None
}

pub(super) fn write(_: *mut u8, _: &[u8]) -> Option<()> {
    None
}

pub(super) fn bring_in(_: *mut u8, _: usize, _: bool) -> Option<()> {
    None
}
