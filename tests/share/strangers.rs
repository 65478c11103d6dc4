//! Others than the user of an address.

use std::net::{IpAddr, UdpSocket};

use roce::link::{Holder, OpenError, udp};
use roce::nic::SoftNic;

use crate::loopback::loopback;

#[test]
fn address_of_one_that_does_not_share_it_names_its_holder() {
    let address = IpAddr::from(loopback(201, 1));
    let holder = UdpSocket::bind((address, 4791)).unwrap();
    let error = udp::open(&udp::Options::new(address)).unwrap_err();
    let OpenError::InUse { holder: Holder::Program { process, .. }, .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(*process, std::process::id());
    drop(holder);
    let nic = SoftNic::start(udp::open(&udp::Options::new(address)).unwrap()).unwrap();
    // Nobody takes it from a NIC, even with the option by which NICs share it: the kernel gives a
    // socket that is bound so a part of what arrives, but for those of other users.
    assert!(UdpSocket::bind((address, 4791)).is_err());
    drop(nic);
}
