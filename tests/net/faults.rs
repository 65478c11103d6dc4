//! A network that loses, doubles and reorders packets.

use crate::{endpoint, lengths, loopback, message, pair};

fn echo(host: u8, faults: &str) {
    let client = endpoint(loopback(host, 1), Some(faults));
    let server = endpoint(loopback(host, 2), Some(faults));
    let (a, b) = pair(&server, (loopback(host, 2), 0).into(), &client);
    let lengths = lengths(64 << 10);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while let Some(message) = b.recv().unwrap() {
                b.send(&message).unwrap();
            }
            b.close().unwrap();
        });
        scope.spawn(|| {
            for (number, len) in lengths.iter().enumerate().cycle().take(40) {
                a.send(&message(number, *len)).unwrap();
            }
        });
        for (number, len) in lengths.iter().enumerate().cycle().take(40) {
            assert_eq!(a.recv().unwrap(), Some(message(number, *len)));
        }
        a.close().unwrap();
    });
}

#[test]
fn one_percent_loss() {
    echo(20, "loss=1%");
}

#[test]
fn ten_percent_loss_with_reordering_and_duplicates() {
    echo(21, "loss=10%,dup=5%,reorder=5%");
}
