//! Regions: bounds, copies, atomics, and memory that goes away.

use super::*;

#[test]
fn an_access_that_wraps_or_passes_the_end_is_refused() {
    let region = Buffer::new(16).region();
    let mut two = [0; 2];
    assert!(region.read(14, &mut two).is_ok());
    assert!(region.read(15, &mut two).is_err());
    assert!(region.write(u64::MAX, &two).is_err());
    assert!(region.write(u64::MAX - 1, &[0; 16]).is_err());
    assert!(region.read(16, &mut []).is_ok(), "no bytes at the end");
    assert!(region.read(17, &mut []).is_err());
    let mut bytes = vec![7];
    assert!(region.append_to(15, 2, &mut bytes).is_err());
    assert!(region.append_to(u64::MAX, 2, &mut bytes).is_err());
    assert!(region.append_to(14, 2, &mut bytes).is_ok());
    assert_eq!(bytes, [7, 0, 0]);
}

/// Number of pages of a buffer that the kernel has given memory.
fn resident_pages(buffer: &Buffer) -> usize {
    let first = usize::try_from(buffer.addr()).unwrap().next_multiple_of(4096);
    let pages = (usize::try_from(buffer.addr()).unwrap() + buffer.len() - first) / 4096;
    let mut resident = vec![0_u8; pages];
    let at = core::ptr::with_exposed_provenance_mut(first);
    // SAFETY: the pages are of the buffer, and there is a byte for each.
    let result = unsafe { libc::mincore(at, pages * 4096, resident.as_mut_ptr()) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    resident.iter().filter(|page| **page & 1 != 0).count()
}

#[test]
fn buffer_takes_pages_when_they_are_touched() {
    let buffer = Buffer::new(64 << 20);
    let before = resident_pages(&buffer);
    assert!(before <= 512, "{before} of 16384 pages are resident, and none was touched");
    let mut bytes = vec![1; 64 << 20];
    buffer.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
    buffer.write(0, &bytes).unwrap();
    assert!(resident_pages(&buffer) >= (64 << 20) / 4096 - 1);
    assert!(Buffer::new(0).is_empty());
    assert!(Buffer::try_new(usize::MAX).is_err() && Buffer::try_new(1 << 62).is_err());
}

#[test]
fn a_part_of_a_buffer_ends_where_it_ends() {
    let buffer = Buffer::from_bytes(b"abcdefgh");
    let part = buffer.part(2, 4).unwrap();
    let mut four = [0; 4];
    part.read(0, &mut four).unwrap();
    assert_eq!((&four, part.len()), (b"cdef", 4));
    assert!(part.write(1, &four).is_err(), "the buffer goes on, the part does not");
    assert!(buffer.part(5, 4).is_err());
    assert!(buffer.part(usize::MAX, 2).is_err());
}

#[test]
fn atomics_return_what_was_there_and_want_alignment() {
    let buffer = Buffer::new(24);
    let region = buffer.region();
    assert_eq!(region.fetch_add(8, 5), Ok(0));
    assert_eq!(region.fetch_add(8, u64::MAX), Ok(5));
    assert_eq!(region.compare_swap(8, 3, 9), Ok(4));
    assert_eq!(region.compare_swap(8, 4, 9), Ok(4));
    assert_eq!(region.fetch_add(8, 0), Ok(9));
    assert_eq!(region.fetch_add(4, 1), Err(AccessError::Misaligned));
    assert!(matches!(region.fetch_add(20, 1), Err(AccessError::OutOfRange { .. })));
    region.store(16, *b"12345678").unwrap();
    assert_eq!(&buffer.to_vec()[16..], b"12345678");
}

#[test]
fn no_memory_swallows_what_is_written_and_reads_as_zero() {
    let null = Region::null(usize::MAX);
    null.write(5, b"gone").unwrap();
    let mut bytes = vec![1; 3];
    null.read(5, &mut bytes[..2]).unwrap();
    null.append_to(5, 2, &mut bytes).unwrap();
    assert_eq!(bytes, [0, 0, 1, 0, 0]);
    assert_eq!(null.fetch_add(8, 7), Ok(0));
    assert_eq!(null.fetch_add(8, 7), Ok(0));
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no such system calls")]
fn foreign_memory_is_accessed_where_mapped_and_refused_elsewhere() {
    let _actions = ACTIONS.lock();
    let buffer = Buffer::from_bytes(b"here it is");
    // SAFETY: the buffer lies in it, and no reference to it is formed meanwhile.
    let all = unsafe { Region::foreign(core::ptr::null_mut(), usize::MAX) };
    let mut bytes = [0; 4];
    all.read(buffer.addr(), &mut bytes).unwrap();
    assert_eq!(&bytes, b"here");
    all.write(buffer.addr(), b"HERE").unwrap();
    assert_eq!(&buffer.to_vec(), b"HERE it is");
    assert_eq!(all.compare_swap(buffer.addr(), 1, 2).map(u64::to_ne_bytes), Ok(*b"HERE it "));
    // Nothing is ever mapped in the first page, nor at the end of the address space.
    for nowhere in [8, u64::MAX - 64] {
        let unmapped = Err(AccessError::Unmapped { offset: nowhere, len: 4 });
        assert_eq!(all.read(nowhere, &mut bytes), unmapped);
        assert_eq!(all.write(nowhere, &bytes), unmapped);
        let mut out = vec![9];
        assert_eq!(all.append_to(nowhere, 4, &mut out), unmapped);
        assert_eq!(out, [9]);
        let aligned = nowhere & !7;
        assert!(matches!(all.fetch_add(aligned, 1), Err(AccessError::Unmapped { .. })));
    }
    all.bring_in(buffer.addr(), 8, true).unwrap();
    assert!(all.bring_in(8, 8, false).is_err());
    assert!(all.bring_in(u64::MAX - 64, 8, false).is_err());
    // What cannot be written: a constant.
    let constant: &'static [u8; 16] = &[7; 16];
    let address = constant.as_ptr() as u64;
    assert!(all.read(address, &mut bytes).is_ok());
    assert!(all.write(address, &bytes).is_err());
    assert!(all.fetch_add(address.next_multiple_of(8), 1).is_err());
    assert!(all.bring_in(address, 16, false).is_ok());
    assert!(all.bring_in(address, 16, true).is_err());
}

/// A file of two pages, mapped.
fn mapped_file() -> (libc::c_int, *mut u8) {
    // SAFETY: it makes a descriptor.
    let file = unsafe { libc::memfd_create(c"memory".as_ptr(), 0) };
    // SAFETY: it is that of a file.
    assert_eq!(unsafe { libc::ftruncate(file, 8192) }, 0);
    let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: the kernel chooses an address that is free.
    let at = unsafe { libc::mmap(core::ptr::null_mut(), 8192, access, shared, file, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    (file, at.cast())
}

/// A copy that sums fails wherever one of its steps crosses into the second page, and no other; one
/// that fails changes neither the sum nor what is behind its room.
fn assert_sums_are_refused_beyond_first_page(region: &Region) {
    for len in (128..=4096).step_by(128) {
        for behind in [0, 1, 15, 16, 17, 128, 129, len / 2, len - 1, len] {
            let (start, mut out) = (4096 - len + behind, vec![0xee; len + 64]);
            let Some(begun) = Sum::begin(7, 0, &[1; 16], 12) else { return };
            let (mut sum, room) = (begun, &mut out[..len]);
            let Some(copied) = region.read_and_sum(start as u64, room, &mut sum) else { return };
            if behind == 0 {
                assert_eq!(copied, Ok(()));
                let mut expected = crc32fast::Hasher::new_with_initial(7);
                expected.update(&[1; 12]);
                expected.update(room);
                assert_eq!(sum.finish(), expected.finalize());
            } else {
                assert_eq!(copied, Err(unmapped(start as u64, len)));
                assert_eq!(sum.finish(), begun.finish());
            }
            assert!(out[len..].iter().all(|byte| *byte == 0xee));
        }
    }
    let Some(mut sum) = Sum::begin(7, 0, &[1; 16], 12) else { return };
    let outside = region.read_and_sum(8192 - 64, &mut [0; 128], &mut sum);
    assert!(matches!(outside, Some(Err(AccessError::OutOfRange { .. }))));
}

/// The second page cannot be read, the first can; nothing is written beyond.
fn assert_second_page_is_gone(region: &Region) {
    let mut bytes = [0; 64];
    region.read(4096 - 64, &mut bytes).unwrap();
    region.write(4096 - 64, &bytes).unwrap();
    let before = region.fetch_add(4096 - 8, 5).unwrap();
    assert_eq!(region.compare_swap(4096 - 8, before.wrapping_add(5), before), Ok(before + 5));
    let unmapped = |offset| Err(AccessError::Unmapped { offset, len: 64 });
    for offset in [4096, 4096 - 63, 4096 - 1, 5000, 8192 - 64] {
        assert_eq!(region.read(offset, &mut bytes), unmapped(offset));
        assert_eq!(region.write(offset, &bytes), unmapped(offset));
        let mut out = vec![9];
        assert_eq!(region.append_to(offset, 64, &mut out), unmapped(offset));
        assert_eq!(out, [9]);
    }
    assert_sums_are_refused_beyond_first_page(region);
    assert_eq!(region.write(0, &[1; 8192]), Err(AccessError::Unmapped { offset: 0, len: 8192 }));
    let unmapped = AccessError::Unmapped { offset: 4096, len: 8 };
    assert_eq!(region.fetch_add(4096, 1), Err(unmapped));
    assert_eq!(region.compare_swap(4096, 0, 1), Err(unmapped));
    assert_eq!(region.store(4096, [1; 8]), Err(unmapped));
    region.bring_in(0, 4096, true).unwrap();
    assert!(region.bring_in(0, 4097, false).is_err());
}

/// Signal actions are the whole process's.
pub(super) static ACTIONS: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[test]
#[cfg_attr(miri, ignore = "Miri has no such system calls")]
fn protected_and_truncated_memory_fails_accesses_and_the_program_lives() {
    let _actions = ACTIONS.lock();
    let (file, at) = mapped_file();
    // SAFETY: no reference to it is ever formed.
    let region = unsafe { Region::foreign(at, 8192) };
    // SAFETY: only the region uses it.
    unsafe { libc::mprotect(at.wrapping_add(4096).cast(), 4096, libc::PROT_NONE) };
    assert_second_page_is_gone(&region);
    // SAFETY: as above.
    unsafe { libc::mprotect(at.wrapping_add(4096).cast(), 4096, libc::PROT_READ) };
    region.read(5000, &mut [0; 8]).unwrap();
    assert!(region.write(5000, &[0; 8]).is_err());
    assert!(region.fetch_add(4096, 0).is_err());
    assert!(region.bring_in(0, 8192, false).is_ok());
    assert!(region.bring_in(0, 8192, true).is_err());
    // SAFETY: as above.
    unsafe { libc::mprotect(at.cast(), 8192, libc::PROT_READ | libc::PROT_WRITE) };
    // SAFETY: as above.
    unsafe { libc::ftruncate(file, 4096) };
    assert_second_page_is_gone(&region);
    // SAFETY: as above.
    unsafe { libc::ftruncate(file, 8192) };
    region.write(0, &[1; 8192]).unwrap();
}

/// Writes store in ascending order: all bytes before a fault, none behind.
#[test]
#[cfg_attr(miri, ignore = "Miri has no such system calls")]
fn writes_store_in_ascending_order_of_addresses() {
    let _actions = ACTIONS.lock();
    let (_, at) = mapped_file();
    let second = at.wrapping_add(4096);
    // SAFETY: no reference to it is ever formed.
    let region = unsafe { Region::foreign(at, 8192) };
    let protect = |page: *mut u8, access| {
        // SAFETY: only the region uses it.
        assert_eq!(unsafe { libc::mprotect(page.cast(), 4096, access) }, 0);
    };
    let open = libc::PROT_READ | libc::PROT_WRITE;
    for len in (2..140).chain([255, 256, 257, 500, 1000, 1024, 4000]) {
        for before in [1, len / 2, len - 1] {
            let start = 4096 - before as u64;
            let mut seen = vec![0; len];
            region.write(start, &seen).unwrap();
            // The bytes behind cannot be written: all those before are.
            protect(second, libc::PROT_READ);
            assert!(region.write(start, &vec![1; len]).is_err());
            region.read(start, &mut seen).unwrap();
            assert!(seen[..before].iter().all(|byte| *byte == 1), "{before} of {len}: {seen:?}");
            protect(second, open);
            // Those before cannot be written: none behind is.
            protect(at, libc::PROT_READ);
            assert!(region.write(start, &vec![2; len]).is_err());
            region.read(start, &mut seen).unwrap();
            assert!(seen[before..].iter().all(|byte| *byte == 0), "{before} of {len}: {seen:?}");
            protect(at, open);
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no such system calls")]
fn accesses_fail_safely_in_threads_that_block_signals_and_under_other_handlers() {
    let _actions = ACTIONS.lock();
    let (file, at) = mapped_file();
    // SAFETY: only the region uses it.
    unsafe { libc::ftruncate(file, 4096) };
    // SAFETY: no reference to it is ever formed.
    let region = unsafe { Region::foreign(at, 8192) };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: zeroes are an empty set.
            let mut all = unsafe { core::mem::zeroed() };
            // SAFETY: the set is ours.
            unsafe { libc::sigfillset(&raw mut all) };
            // SAFETY: as above.
            unsafe {
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, core::ptr::null_mut())
            };
            assert_second_page_is_gone(&region);
        });
    });
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: zeroes are the default action.
        let default: libc::sigaction = unsafe { core::mem::zeroed() };
        // SAFETY: as above.
        let mut ours = unsafe { core::mem::zeroed() };
        // SAFETY: both are whole.
        unsafe { libc::sigaction(signal, &raw const default, &raw mut ours) };
        masks_changed();
        assert_second_page_is_gone(&region);
        assert!(!fault::is_guarded());
        // SAFETY: as above.
        unsafe { libc::sigaction(signal, &raw const ours, core::ptr::null_mut()) };
        masks_changed();
        assert_second_page_is_gone(&region);
        assert_eq!(fault::is_guarded(), routines::AVAILABLE);
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no such system calls")]
fn restored_own_handler_does_not_become_its_next_action() {
    if !routines::AVAILABLE {
        return;
    }
    let _actions = ACTIONS.lock();
    fault::install();
    let query = || {
        // SAFETY: zeroes are the default action.
        let mut seen: libc::sigaction = unsafe { core::mem::zeroed() };
        // SAFETY: there is room for an answer.
        unsafe { libc::sigaction(libc::SIGBUS, core::ptr::null(), &raw mut seen) };
        seen
    };
    // What a library sees that calls the C library's function, and restores later.
    let own = query();
    let before = replace_action(libc::SIGBUS, None).unwrap();
    let old = replace_action(libc::SIGBUS, Some(own)).unwrap();
    let after = replace_action(libc::SIGBUS, None).unwrap();
    assert_ne!(before.sa_sigaction, own.sa_sigaction);
    assert_eq!(old.sa_sigaction, before.sa_sigaction);
    assert_eq!(after.sa_sigaction, before.sa_sigaction);
    assert_eq!(query().sa_sigaction, own.sa_sigaction, "it stays in front");
}

#[test]
fn regions_know_their_size_address_and_kind() {
    let buffer = Buffer::new(64);
    let (region, part, none) = (buffer.region(), buffer.part(8, 0).unwrap(), Region::null(8));
    assert!(!buffer.is_empty() && Buffer::new(0).is_empty());
    assert!(!region.is_empty() && part.is_empty());
    assert_eq!((region.addr(), part.addr()), (buffer.addr(), buffer.addr() + 8));
    assert!(region.is_direct() && none.is_direct());
    assert!(!region.is_null() && none.is_null());
}

#[test]
fn buffer_that_no_memory_is_there_for_is_refused() {
    assert!(Buffer::try_new(usize::MAX).is_err());
    assert_eq!(Buffer::try_new(9).unwrap().len(), 9);
}

#[test]
fn a_region_outlives_the_handle_it_was_made_from() {
    let region = Buffer::from_bytes(b"abcdefgh").region();
    let mut bytes = [0; 8];
    region.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"abcdefgh");
}

#[test]
fn buffers_are_shared_between_threads() {
    let buffer = Buffer::new(8);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope
                .spawn(|| (0..1000).for_each(|_| assert!(buffer.region().fetch_add(0, 1).is_ok())));
        }
    });
    assert_eq!(buffer.region().fetch_add(0, 0), Ok(4000));
}
