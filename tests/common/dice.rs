//! A generator of its own, so that a change of the engine's does not change the stories.

#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn roll(&mut self) -> u64 {
        // Xorshift, star.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        // The low bits are the worst.
        (self.roll() >> 16) as usize % end
    }

    /// Whether a thing happens that has a chance of 1 in `times`.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 7);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.roll().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }

    /// Four bytes, half of the time.
    pub fn imm(&mut self) -> Option<[u8; 4]> {
        let number = self.roll();
        (number & 1 == 0).then(|| ((number >> 32) as u32).to_be_bytes())
    }
}
