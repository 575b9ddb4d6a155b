#pragma once

#include <penstock/core/bytes.hpp>

#include <array>
#include <cstddef>

namespace penstock {

/// The figures that suit a device. Its backend chooses them, so that no other code asks which device it is. A
/// measured LinkProfile takes precedence.
///
/// The defaults are those of a GPU. They were found on an H200 and an H100, both behind PCIe 5 x16
/// (docs/lab). The first five are lower than those of any GPU in use.
struct DeviceTuning {
  // The link, until it is measured.

  /// The share of a link's stated rate that transfers surely reach.
  double usable_link_share = 0.75;
  /// Bytes per second each way of a link that does not state its rate: the same share of PCIe 3 x16.
  double unstated_link_rate = 9e9;
  /// Bytes per second of copies within the device.
  double device_copy_rate = 200e9;
  /// Seconds from the request of a small copy to its end, and from one such copy to the next.
  double copy_latency = 8e-6;
  double copy_interval = 4e-6;

  // Staged transfers.

  /// Host threads that fill the link. One processor of the machine is left for others.
  unsigned staging_threads = 7;
  /// Host threads of a fill, and of packing. Each of them reads a file in memory at 4 to 6 GB/s, half as fast
  /// as it copies, and small pieces are slow, too.
  unsigned fill_threads = 12;
  /// The first chunk of a transfer. It is small, since the link idles until it is filled.
  std::size_t first_staged_chunk = 512 * kKiB;
  /// Sizes of the largest chunk. The first one, which hides the link's cost of each copy, is used until a
  /// measurement has tried all of them.
  std::array<std::size_t, 4> staged_chunks{12 * kMiB, 16 * kMiB, 8 * kMiB, 4 * kMiB};

  /// Packed transfers.
  struct Packing {
    /// Chunks double from the first to the largest, so that the link starts early and then has long copies.
    std::size_t first_chunk_bytes = 256 * kKiB;
    std::size_t largest_chunk_bytes = 1 * kMiB;
    /// Largest part of the packed bytes that is in pinned memory at once.
    std::size_t window_bytes = 32 * kMiB;
    /// If a run of adjoining pieces is shorter, a kernel moves it at a lower cost than a copy does.
    std::size_t shortest_run_bytes = 32 * kKiB;
    /// Whether packing writes past the processor's cache.
    bool streaming_stores = true;
  };
  Packing packing;

  // Smallest arrays that get a transfer of their own among others. Smaller ones are packed together.
  std::size_t alone_pageable_bytes = 256 * kKiB;
  std::size_t alone_pinned_bytes = 64 * kKiB;

  // Batches.

  /// Smallest samples that get a copy each, until gathers were measured. A copy of a batch costs the host up
  /// to 0.9 microseconds, in which PCIe 5 x16 carries about 48 KiB. Copies of 24 KiB and less take another,
  /// several times slower way through the driver.
  std::size_t copied_sample_bytes = 64 * kKiB;
  /// Copies of loaders and engines are enqueued in parts. Other copies of the program wait for two of them:
  /// 0.5 ms on PCIe 5 x16 if they are large. Each part costs 4 µs of the link: 1.7 % of a large one, 5 % of a
  /// small one.
  std::size_t large_part_bytes = 12800 * kKiB;
  std::size_t small_part_bytes = 4 * kMiB;
  /// Blocks of a loader's kernel that reads over the link, on each of its streams. Four fill the link; a
  /// kernel that converts has more to do.
  unsigned copying_blocks = 4;
  unsigned converting_blocks = 8;
  unsigned most_blocks = 32;
  /// Host threads that gather a batch, unless a number is given.
  unsigned gather_threads = 8;

  /// Seconds of the loader's thread for each copy of a sample: 0.65 to 0.9 µs on hosts of H100s.
  double enqueue_copy_seconds = 0.8e-6;

  // The rates of gathers, until they are measured.

  /// Least seconds for each sample: of all host threads together, and of a kernel that reads the link.
  double host_sample_seconds = 12e-9;
  double link_sample_seconds = 11e-9;
  /// The share of the link's rate that copies below `copied_sample_bytes` reach, and the least seconds for
  /// one of them.
  double small_copy_share = 0.1;
  double small_copy_seconds = 1e-6;
};

}  // namespace penstock
