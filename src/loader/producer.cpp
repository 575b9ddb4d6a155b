#include "loader/producer.hpp"

#include <penstock/core/bytes.hpp>

#include <algorithm>

namespace penstock {

namespace {

constexpr std::size_t kPieceBytes = std::size_t{256} << 10;
// Of a kernel that reads over the link, on each stream: four fill it, and a kernel that widens has more to
// do.
constexpr unsigned kCopyingBlocks = 4;
constexpr unsigned kWideningBlocks = 8;
constexpr unsigned kMostBlocks = 32;

const std::byte* end_of(const CopyPiece& piece) {
  return static_cast<const std::byte*>(piece.source) + piece.bytes;
}

}  // namespace

Producer::Producer(const Dataset& dataset, const Device& device, Pool& device_memory,
                   const std::vector<Route>& routes, const Layout& layout, const LoaderOptions& options,
                   std::size_t batch, WorkerTeam* team, bool streaming_stores)
    : dataset_(dataset),
      device_(device),
      routes_(routes),
      layout_(layout),
      team_(team),
      stores_(streaming_stores ? StoreKind::streaming : StoreKind::cached),
      gather_blocks_(options.gather_blocks) {
  for (std::size_t r = 0; r < routes_.size(); ++r) {
    if (!routes_[r].is_listed()) continue;
    if (routes_[r].engine_copied()) copies_.reserve(batch);
    Part& part = parts_.emplace_back();
    part.route = r;
    part.piece_rows = std::max<std::size_t>(1, kPieceBytes / routes_[r].row_bytes);
    if (routes_[r].resident_rows > 0) part.listed.resize(batch);
  }
  const auto is_split = [](const Route& route) { return route.resident_rows > 0 && route.streams(); };
  gathers_on_host_ = std::ranges::any_of(routes_, &Route::host_gathered);
  orders_on_device_ = parts_.empty() && std::ranges::none_of(routes_, is_split);
  for (std::size_t i = 0; i < kLoaderStreams; ++i) {
    Lane& lane = lanes_.emplace_back(Lane{device_.create_stream(StreamPriority::high), {}});
    if (layout_.landing_bytes > 0) lane.landing = device_memory.allocate(layout_.landing_bytes);
  }
  const std::size_t count = std::max<std::size_t>(options.prefetch_depth + 1, kLoaderStreams + 1);
  const std::size_t bytes = align_up(layout_.stage_bytes, 4096);
  pinned_ = std::make_unique<Pool>(make_pinned_pool(device_, {.segment_bytes = count * bytes}));
  stage_memory_ = pinned_->allocate(count * bytes);
  auto* const on_device = static_cast<std::byte*>(device_.backend().device_address(stage_memory_.data()));
  for (std::size_t i = 0; i < count; ++i) {
    std::byte* const memory = stage_memory_.data() + i * bytes;
    auto* const indices = reinterpret_cast<std::uint64_t*>(memory + layout_.stage_indices);
    // What keeps a processor busy in the driver would be paid for each batch: other stages' batches are still
    // queued while one is waited for, so that noticing its end late costs nothing.
    stages_.push_back(
        {memory, on_device + i * bytes, indices, device_.create_event(EventTiming::off, EventWait::sleep)});
  }
}

Producer::~Producer() {
  try {
    synchronize();
  } catch (...) {  // a device that failed does no more work either
  }
}

void Producer::synchronize() const {
  for (const Lane& lane : lanes_) lane.stream.synchronize();
}

void Producer::fill(DeviceSlot& slot, const DeviceRing& ring, const SampleRun& run, Arrival& arrival,
                    const Account& account, bool& spoiled) {
  Stage& stage = stages_[turn_ % stages_.size()];
  const Lane& lane = lanes_[turn_ % lanes_.size()];
  const Stream& stream = lane.stream;
  ++turn_;
  stage.read.synchronize();
  const auto count = static_cast<std::size_t>(run.count);
  const std::span indices(stage.indices, count);
  if (!orders_on_device_) run.fill(indices);
  for (Part& part : parts_) choose_rows(part, stage, indices);
  if (gathers_on_host_) {
    arrival.times.gather_begin = account.now();
    gather_on_host(stage);
    arrival.times.gather_end = account.now();
  }
  arrival.times.link_bytes = link_bytes(indices);
  ring.wait_for_users(slot, stream);
  spoiled = true;
  const auto mark = [&] {
    slot.ready.record(stream);
    stage.read.record(stream);
  };
  try {
    if (arrival.timed != nullptr) arrival.timed->begin.record(stream);
    if (orders_on_device_) enqueue_order(slot, run, stream);
    enqueue(slot, stage, count, lane);
    if (arrival.timed != nullptr) arrival.timed->end.record(stream);
    mark();
  } catch (...) {
    try {
      mark();
    } catch (...) {
      stream.synchronize();
    }
    spoiled = false;
    throw;
  }
  spoiled = false;
}

void Producer::choose_rows(Part& part, const Stage& stage, std::span<const std::uint64_t> indices) const {
  const Route& route = routes_[part.route];
  part.indices = indices;
  if (route.resident_rows > 0) {
    // What is not resident lies in the stage in the batch's order, and is numbered on from what is.
    auto* const renumbered = reinterpret_cast<std::uint64_t*>(stage.memory + route.stage_numbers);
    std::size_t listed = 0;
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const bool resident = indices[i] < route.resident_rows;
      renumbered[i] = resident ? indices[i] : route.resident_rows + listed;
      if (!resident) part.listed[listed++] = indices[i];
    }
    part.indices = std::span(part.listed).first(listed);
  }
  part.pieces = route.host_gathered() ? (part.indices.size() + part.piece_rows - 1) / part.piece_rows : 0;
}

void Producer::gather_on_host(const Stage& stage) {
  std::size_t pieces = 0;
  for (const Part& part : parts_) pieces += part.pieces;
  team_->for_each(pieces, [&](std::size_t piece) { gather_piece(stage, piece); });
}

void Producer::gather_piece(const Stage& stage, std::size_t piece) const {
  auto part = parts_.begin();
  for (; piece >= part->pieces; ++part) piece -= part->pieces;
  const Route& route = routes_[part->route];
  const std::size_t first = piece * part->piece_rows;
  const std::size_t rows = std::min(part->piece_rows, part->indices.size() - first);
  dataset_.gather(part->route, part->indices.subspan(first, rows),
                  {stage.memory + route.stage_offset + first * route.row_bytes, rows * route.row_bytes},
                  stores_);
}

void Producer::enqueue(const DeviceSlot& slot, const Stage& stage, std::size_t count, const Lane& lane) {
  enqueue_plain_copies(slot, stage, count, lane.stream);
  for (std::size_t r = 0; r < routes_.size(); ++r) {
    const Route& route = routes_[r];
    if (route.is_plain_copy()) continue;
    std::byte* const landing = lane.landing.data() + route.landing_offset;
    if (route.engine_copied()) {
      const Part& part = *part_of(r);
      enqueue_row_copies(part, route.lands ? landing : static_cast<std::byte*>(slot.fields[r].data),
                         lane.stream);
      if (!route.lands) continue;
    } else if (route.lands) {
      const std::size_t bytes = part_of(r)->indices.size() * route.row_bytes;
      device_.backend().copy(landing, stage.memory + route.stage_offset, bytes, CopyDirection::h2d,
                             lane.stream.native());
    }
    enqueue_gather(r, slot, stage, count, lane);
  }
}

void Producer::enqueue_row_copies(const Part& part, std::byte* destination, const Stream& stream) {
  const Route& route = routes_[part.route];
  copies_.clear();
  for (const std::uint64_t index : part.indices) {
    const std::byte* const source = route.source + (index - route.resident_rows) * route.row_bytes;
    if (!copies_.empty() && end_of(copies_.back()) == source) {
      copies_.back().bytes += route.row_bytes;
    } else {
      copies_.push_back({source, destination, route.row_bytes});
    }
    destination += route.row_bytes;
  }
  device_.backend().copy_each(copies_, CopyDirection::h2d, stream.native());
}

void Producer::enqueue_order(const DeviceSlot& slot, const SampleRun& run, const Stream& stream) const {
  device_.backend().fill_order({run, slot.indices}, stream.native());
}

void Producer::enqueue_plain_copies(const DeviceSlot& slot, const Stage& stage, std::size_t count,
                                    const Stream& stream) const {
  // They lie side by side in the slot as in the stage, so that one copy takes them all.
  std::size_t begin = 0;
  std::size_t end = 0;
  for (const Route& route : routes_) {
    if (!route.is_plain_copy()) continue;
    if (end == 0) begin = route.slot_offset;
    end = route.slot_offset + count * route.row_bytes;
  }
  if (end == begin) return;
  device_.backend().copy(slot.memory.data() + begin, stage.memory + begin, end - begin, CopyDirection::h2d,
                         stream.native());
}

const Producer::Part* Producer::part_of(std::size_t route) const noexcept {
  const auto found = std::ranges::find(parts_, route, &Part::route);
  return found == parts_.end() ? nullptr : &*found;
}

void Producer::enqueue_gather(std::size_t r, const DeviceSlot& slot, const Stage& stage, std::size_t count,
                              const Lane& lane) const {
  const Route& route = routes_[r];
  GatherRequest request;
  request.row_elements = route.row_elements;
  request.count = count;
  request.destination = slot.fields[r].data;
  request.from = route.stored.dtype;
  request.to = route.to;
  request.scale = route.device_scale;
  request.shift = route.device_shift;
  request.channels = route.factors.channels;
  request.channel_elements = route.factors.channel_elements;
  request.head = route.resident;
  request.head_rows = route.resident_rows;
  if (const Part* part = part_of(r)) {
    request.source =
        route.lands ? lane.landing.data() + route.landing_offset : stage.on_device + route.stage_offset;
    request.source_rows = route.resident_rows + part->indices.size();
    if (route.resident_rows > 0) {
      request.indices = reinterpret_cast<const std::uint64_t*>(stage.on_device + route.stage_numbers);
    }
  } else {
    request.source = route.source;
    request.source_rows = route.rows;
    request.indices = orders_on_device_
                          ? slot.indices
                          : reinterpret_cast<const std::uint64_t*>(stage.on_device + layout_.stage_indices);
  }
  if (route.streams() && !route.lands) request.blocks = blocks_over_link(route);
  device_.backend().gather(request, lane.stream.native());
}

// The more of a batch is resident, the more blocks it takes to keep the link busy with the rest.
unsigned Producer::blocks_over_link(const Route& route) const noexcept {
  if (gather_blocks_ != 0) return gather_blocks_;
  const std::uint64_t blocks = route.converts ? kWideningBlocks : kCopyingBlocks;
  return static_cast<unsigned>(
      std::min<std::uint64_t>(blocks * (route.rows / (route.rows - route.resident_rows)), kMostBlocks));
}

std::size_t Producer::link_bytes(std::span<const std::uint64_t> indices) const {
  std::size_t bytes = 0;
  for (std::size_t r = 0; r < routes_.size(); ++r) {
    const Route& route = routes_[r];
    if (!route.streams()) continue;
    std::size_t rows = indices.size();
    if (const Part* part = part_of(r)) {
      rows = part->indices.size();
    } else if (route.resident_rows > 0) {
      rows = static_cast<std::size_t>(
          std::ranges::count_if(indices, [&](std::uint64_t index) { return index >= route.resident_rows; }));
    }
    bytes += rows * route.row_bytes;
  }
  return bytes;
}

}  // namespace penstock
