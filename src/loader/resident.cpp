#include "loader/resident.hpp"

#include "loader/sources.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/transfer/transfer_engine.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

namespace penstock {

namespace {

constexpr std::size_t kChunkBytes = std::size_t{64} << 20;
constexpr std::size_t kGatherBytes = std::size_t{8} << 20;

/// Rows that lie in memory, in chunks of which one is on its way while the next is being staged.
bool move_memory(TransferEngine& engine, const Device& device, std::byte* destination,
                 std::span<const std::byte> source, FunctionRef<bool()> stopped) {
  // A page that is locked for a neighbour makes no source that the device could copy from in one piece.
  const bool locked = is_locked_by_others(device, source);
  const CopyOptions options{.path = locked ? TransferPath::automatic : TransferPath::staged,
                            .source_kind = locked ? MemoryKind::pinned : MemoryKind::pageable,
                            .destination_kind = MemoryKind::device};
  Transfer before;
  for (std::size_t done = 0; done < source.size(); done += kChunkBytes) {
    if (stopped()) break;
    const std::size_t bytes = std::min(kChunkBytes, source.size() - done);
    const Transfer now = engine.copy(destination + done, source.data() + done, bytes, options);
    before.synchronize();
    before = now;
  }
  before.synchronize();
  return !stopped();
}

/// Rows that have to be read one by one, through two pinned buffers.
bool move_gathered(const Device& device, const Dataset& dataset, std::size_t field, const Route& route,
                   std::byte* destination, WorkerTeam* team, FunctionRef<bool()> stopped) {
  const std::uint64_t chunk_rows = std::max<std::uint64_t>(1, kGatherBytes / route.row_bytes);
  const std::size_t chunk_bytes = static_cast<std::size_t>(chunk_rows) * route.row_bytes;
  Pool pinned = make_pinned_pool(device, {.segment_bytes = 2 * align_up(chunk_bytes, 256)});
  struct Half {
    Buffer memory;
    Event read;
  };
  std::array<Half, 2> halves{Half{pinned.allocate(chunk_bytes), device.create_event()},
                             Half{pinned.allocate(chunk_bytes), device.create_event()}};
  const Stream stream = device.create_stream();
  std::vector<std::uint64_t> indices(static_cast<std::size_t>(chunk_rows));
  std::size_t turn = 0;
  const auto move_chunk = [&](std::uint64_t first) {
    Half& half = halves[turn++ % 2];
    half.read.synchronize();
    const auto rows = static_cast<std::size_t>(std::min(chunk_rows, route.resident_rows - first));
    std::iota(indices.begin(), indices.end(), first);
    const std::size_t pieces = team != nullptr ? std::min<std::size_t>(team->threads(), rows) : 1;
    const auto gather = [&](std::size_t piece) {
      const std::size_t begin = rows * piece / pieces;
      const std::size_t end = rows * (piece + 1) / pieces;
      dataset.gather(field, std::span(indices).subspan(begin, end - begin),
                     half.memory.bytes().subspan(begin * route.row_bytes, (end - begin) * route.row_bytes));
    };
    if (team != nullptr) {
      team->for_each(pieces, gather);
    } else {
      gather(0);
    }
    device.backend().copy(destination + first * route.row_bytes, half.memory.data(), rows * route.row_bytes,
                          CopyDirection::h2d, stream.native());
    half.read.record(stream);
  };
  try {
    for (std::uint64_t first = 0; first < route.resident_rows && !stopped(); first += chunk_rows) {
      move_chunk(first);
    }
    stream.synchronize();
  } catch (...) {
    for (Half& half : halves) {
      try {
        half.memory.release_after(stream);
      } catch (...) {  // it has waited, or the memory is never used again
      }
    }
    throw;
  }
  return !stopped();
}

}  // namespace

Resident::Resident(const Device& device, Pool& memory, std::vector<Route>& routes) : device_(device) {
  const std::size_t factors = factor_bytes(routes);
  for (Route& route : routes) {
    const std::size_t bytes = static_cast<std::size_t>(route.resident_rows) * route.row_bytes;
    bytes_ += bytes;
    route.resident = bytes > 0 ? rows_.emplace_back(memory.allocate(bytes)).data() : nullptr;
  }
  if (factors == 0) return;
  factors_ = memory.allocate(factors);
  Pool pinned = make_pinned_pool(device_, {.segment_bytes = 4096});
  Buffer staged = pinned.allocate(factors);
  std::size_t offset = 0;
  const auto put = [&](const std::vector<float>& values) -> const float* {
    if (values.empty()) return nullptr;
    const std::size_t bytes = values.size() * sizeof(float);
    std::memcpy(staged.data() + offset, values.data(), bytes);
    const auto* const there = reinterpret_cast<const float*>(factors_.data() + offset);
    offset += bytes;
    return there;
  };
  for (Route& route : routes) {
    route.device_scale = put(route.factors.scale);
    route.device_shift = put(route.factors.shift);
  }
  const Stream stream = device_.create_stream();
  device_.backend().copy(factors_.data(), staged.data(), offset, CopyDirection::h2d, stream.native());
  staged.release_after(stream);
  stream.synchronize();
}

bool Resident::fill(const Dataset& dataset, const std::vector<Route>& routes, const LinkProfile& profile,
                    WorkerTeam* team, FunctionRef<bool()> stopped) {
  if (rows_.empty()) return true;
  std::unique_ptr<TransferEngine> engine;
  auto rows = rows_.begin();
  for (std::size_t f = 0; f < routes.size(); ++f) {
    if (routes[f].resident_rows == 0) continue;
    Buffer& there = *rows++;
    const auto memory = dataset.memory(f);
    bool whole = false;
    if (!memory.empty() && !dataset.is_file_mapping(f)) {
      if (engine == nullptr)
        engine = std::make_unique<TransferEngine>(device_, TransferOptions{.profile = profile});
      whole = move_memory(*engine, device_, there.data(), memory.first(there.size()), stopped);
    } else {
      whole = move_gathered(device_, dataset, f, routes[f], there.data(), team, stopped);
    }
    if (!whole) return false;
  }
  return true;
}

}  // namespace penstock
