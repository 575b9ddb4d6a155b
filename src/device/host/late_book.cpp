#include "device/host/late_book.hpp"

#include "device/host/host_memory.hpp"
#include "device/host/host_stream.hpp"

#include <penstock/core/fork.hpp>

#include <algorithm>
#include <cstring>

namespace penstock {

namespace {

const std::byte* bytes_at(const void* data) noexcept { return static_cast<const std::byte*>(data); }

}  // namespace

std::shared_ptr<LateBook> LateBook::of_process() {
  static auto& mutex = *new std::mutex;
  static auto& shared = *new std::weak_ptr<LateBook>;
  static std::uint64_t generation = 0;
  const std::lock_guard lock(mutex);
  auto book = shared.lock();
  // A forked child has the parent's book, perhaps locked, with work that nobody will do.
  if (book == nullptr || generation != fork_generation()) shared = book = std::make_shared<LateBook>();
  generation = fork_generation();
  return book;
}

std::uint64_t LateBook::enqueue(HostStream& stream, const Work& work) {
  const Touched touched = touched_by(work);
  const std::lock_guard lock(mutex_);
  std::erase_if(ahead_, [](const Access& access) { return access.stream->done(access.ticket); });
  if (!touched.written.empty() && !in_use(touched.written)) {
    std::memset(const_cast<std::byte*>(touched.written.data()), kPoison, touched.written.size());
  }
  const std::uint64_t ticket = stream.enqueue(work);
  const auto note = [&](Bytes bytes) { ahead_.push_back({stream.shared_from_this(), ticket, bytes}); };
  if (touched.anything) note({});
  if (!touched.written.empty()) note(touched.written);
  for (const Bytes bytes : touched.read) note(bytes);
  return ticket;
}

void LateBook::forget(const HostCore& device) {
  const std::lock_guard lock(mutex_);
  std::erase_if(ahead_, [&](const Access& access) { return access.stream->is_of(device); });
}

LateBook::Touched LateBook::touched_by(const Work& work) {
  Touched touched;
  if (const auto* copy = std::get_if<CopyWork>(&work)) {
    touched.written = {bytes_at(copy->destination), copy->bytes};
    touched.read = {{bytes_at(copy->source), copy->bytes}};
  } else if (const auto* fill = std::get_if<FillWork>(&work)) {
    touched.written = {bytes_at(fill->destination), fill->bytes};
  } else if (const auto* gather = std::get_if<GatherWork>(&work)) {
    const GatherRequest& request = gather->request;
    const std::size_t row = request.row_elements * dtype_bytes(request.from);
    const std::size_t stride = request.row_stride_bytes != 0 ? request.row_stride_bytes : row;
    touched.written = {bytes_at(request.destination),
                       request.count * request.row_elements * dtype_bytes(request.to)};
    touched.read = {{bytes_at(request.source), (request.source_rows - request.head_rows) * stride},
                    {bytes_at(request.head), request.head_rows * stride},
                    {bytes_at(request.indices), request.count * sizeof(std::uint64_t)},
                    {bytes_at(request.scale), request.channels * sizeof(float)},
                    {bytes_at(request.shift), request.channels * sizeof(float)}};
    std::erase_if(touched.read, [](Bytes bytes) { return bytes.data() == nullptr; });
  } else if (const auto* order = std::get_if<OrderWork>(&work)) {
    touched.written = {bytes_at(order->request.indices), order->request.run.count * sizeof(std::uint64_t)};
  } else if (const auto* hash = std::get_if<HashWork>(&work)) {
    const HashRequest& request = hash->request;
    touched.written = {bytes_at(request.sums), HashRequest::sum_count(request.bytes) * sizeof(HashSum)};
    touched.read = {{bytes_at(request.source), request.bytes}};
  } else if (std::holds_alternative<PiecesWork>(work) || std::holds_alternative<SplitWork>(work)) {
    touched.anything = true;
  }
  return touched;
}

bool LateBook::in_use(Bytes bytes) const {
  return std::any_of(ahead_.begin(), ahead_.end(), [&](const Access& access) {
    if (access.bytes.data() == nullptr) return true;
    return access.bytes.data() < bytes.data() + bytes.size() &&
           bytes.data() < access.bytes.data() + access.bytes.size();
  });
}

}  // namespace penstock
