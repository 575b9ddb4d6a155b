#include "device/cuda/kernels.hpp"

#include <penstock/core/dtype.hpp>
#include <penstock/core/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>

extern "C" const char penstock_kernels_ptx[];

namespace penstock::cuda {

namespace {

constexpr std::uint64_t kChunk = 16;
constexpr unsigned kBlocksPerMultiprocessor = 2;
constexpr std::uint64_t kFewestPieceBlocks = 64;
constexpr unsigned kSplitBlocksPerMultiprocessor = 6;
constexpr unsigned kFillOrderBlocksPerMultiprocessor = 8;

constexpr bool is_same(DType dtype, Type type) { return static_cast<std::uint32_t>(dtype) == type; }

static_assert(is_same(DType::boolean, kBoolean) && is_same(DType::uint8, kUint8) &&
              is_same(DType::int8, kInt8) && is_same(DType::uint16, kUint16) &&
              is_same(DType::int16, kInt16) && is_same(DType::uint32, kUint32) &&
              is_same(DType::int32, kInt32) && is_same(DType::uint64, kUint64) &&
              is_same(DType::int64, kInt64) && is_same(DType::float16, kFloat16) &&
              is_same(DType::bfloat16, kBfloat16) && is_same(DType::float32, kFloat32) &&
              is_same(DType::float64, kFloat64));

static_assert(sizeof(RowValue) == sizeof(SplitValue) &&
              offsetof(RowValue, destination) == offsetof(SplitValue, destination) &&
              offsetof(RowValue, destination_stride) == offsetof(SplitValue, destination_stride) &&
              offsetof(RowValue, row_offset) == offsetof(SplitValue, row_offset) &&
              offsetof(RowValue, from) == offsetof(SplitValue, types) &&
              offsetof(RowValue, to) == offsetof(SplitValue, types) + 1 &&
              offsetof(RowValue, scaled) == offsetof(SplitValue, types) + 2 &&
              offsetof(RowValue, scale) == offsetof(SplitValue, scale) &&
              offsetof(RowValue, shift) == offsetof(SplitValue, shift) &&
              kSplitSegment == kSplitSegmentBytes);

std::uint64_t divide_up(std::uint64_t value, std::uint64_t by) {
  return value / by + (value % by != 0 ? 1 : 0);
}

std::uint64_t multiply_modulo(std::uint64_t a, std::uint64_t b, std::uint64_t modulus) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>(Wide{a} * b % modulus);
}

bool is_aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % kChunk == 0; }

bool is_aligned(const GatherRequest& request, std::uint64_t row_bytes, std::uint64_t stride) {
  return is_aligned(request.source) && (request.head_rows == 0 || is_aligned(request.head)) &&
         is_aligned(request.destination) && row_bytes % kChunk == 0 && stride % kChunk == 0;
}

/// Sets the arguments that both kinds of gather share.
template <typename Arguments>
Arguments arguments_of(const GatherRequest& request, std::uint64_t stride) {
  Arguments arguments{};
  arguments.head = request.head;
  arguments.head_rows = request.head_rows;
  arguments.source = reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(request.source) -
                                                   request.head_rows * stride);
  arguments.indices = request.indices;
  arguments.destination = request.destination;
  arguments.source_rows = request.source_rows;
  arguments.count = request.count;
  arguments.stride_bytes = stride;
  return arguments;
}

void check_row(std::uint64_t bytes) {
  constexpr std::uint64_t kLimit = std::uint64_t{1} << 35;
  if (bytes >= kLimit)
    throw InvalidArgument(fmt::format("rows of {} bytes cannot be gathered; the limit is 32 GiB", bytes));
}

}  // namespace

Kernels::Kernels(const PrimaryContext& context, unsigned multiprocessors)
    : context_(context), multiprocessors_(std::max(multiprocessors, 1u)) {
  call(context_, context_.driver().module_load_data_ex, &module_, penstock_kernels_ptx, 0u, nullptr, nullptr);
  try {
    copy_pieces_ = load("penstock_copy_pieces");
    gather_bytes_aligned_ = load("penstock_gather_bytes_aligned");
    gather_bytes_ = load("penstock_gather_bytes");
    gather_widen_1_2_ = load("penstock_gather_widen_1_2");
    gather_widen_1_4_ = load("penstock_gather_widen_1_4");
    gather_widen_2_4_ = load("penstock_gather_widen_2_4");
    gather_widen_ = load("penstock_gather_widen");
    split_rows_ = load("penstock_split_rows");
    fill_order_ = load("penstock_fill_order");
    render_ = load("penstock_render");
    hash_ = load("penstock_hash");
    occupy_ = load("penstock_occupy");
  } catch (...) {
    release(context_, context_.driver().module_unload, module_);
    throw;
  }
}

Kernels::~Kernels() { release(context_, context_.driver().module_unload, module_); }

Kernels::Kernel Kernels::load(const char* name) const {
  Kernel kernel{nullptr, name};
  call(context_, context_.driver().module_get_function, &kernel.function, module_, name);
  // The driver otherwise loads a kernel at its first launch, and may wait there for all work of the context:
  // for ever, if that work waits for what the launching thread does next.
  const auto& func_load = context_.driver().func_load;
  if (func_load) call(context_, func_load, kernel.function);
  return kernel;
}

template <typename Arguments>
void Kernels::launch(const Kernel& kernel, unsigned blocks, unsigned threads, Arguments arguments,
                     Stream stream) const {
  void* parameters[] = {&arguments};
  call(context_, context_.driver().launch_kernel, kernel.function, blocks, 1u, 1u, threads, 1u, 1u, 0u,
       stream, static_cast<void**>(parameters), nullptr);
}

void Kernels::copy_pieces(const CopyPiece* pieces, std::size_t count, Stream stream) const {
  static_assert(sizeof(CopyPiece) == 24);
  const std::uint64_t most = std::uint64_t{multiprocessors_} * 2 * kBlocksPerMultiprocessor;
  const auto blocks =
      static_cast<unsigned>(std::min(std::max<std::uint64_t>(count, kFewestPieceBlocks), most));
  launch(copy_pieces_, blocks, kCopyPiecesThreads, CopyPiecesArguments{pieces, count}, stream);
}

unsigned Kernels::gather_blocks(const GatherRequest& request, std::uint64_t chunks) const {
  const unsigned most = request.blocks != 0 ? request.blocks : multiprocessors_ * kBlocksPerMultiprocessor;
  return static_cast<unsigned>(std::clamp<std::uint64_t>(divide_up(chunks, kGatherThreads), 1, most));
}

void Kernels::gather(const GatherRequest& request, Stream stream) const {
  if (request.count == 0 || request.row_elements == 0) return;
  const std::uint64_t row_bytes = request.row_elements * dtype_bytes(request.from);
  const std::uint64_t stride = request.row_stride_bytes != 0 ? request.row_stride_bytes : row_bytes;
  check_row(row_bytes);
  if (request.from == request.to && request.scale == nullptr && request.shift == nullptr) {
    gather_bytes(request, stride, stream);
  } else {
    gather_widen(request, stride, stream);
  }
}

void Kernels::gather_bytes(const GatherRequest& request, std::uint64_t stride, Stream stream) const {
  auto arguments = arguments_of<GatherBytesArguments>(request, stride);
  arguments.row_bytes = request.row_elements * dtype_bytes(request.from);
  const bool aligned = is_aligned(request, arguments.row_bytes, stride);
  const std::uint64_t row_chunks = divide_up(arguments.row_bytes, kChunk) + (aligned ? 0 : 1);
  launch(aligned ? gather_bytes_aligned_ : gather_bytes_, gather_blocks(request, request.count * row_chunks),
         kGatherThreads, arguments, stream);
}

void Kernels::gather_widen(const GatherRequest& request, std::uint64_t stride, Stream stream) const {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
  const std::size_t from_bytes = dtype_bytes(request.from);
  const std::size_t to_bytes = dtype_bytes(request.to);
  const std::uint64_t row_bytes = request.row_elements * from_bytes;
  if (request.row_elements > kMost) {
    throw InvalidArgument(
        fmt::format("rows of {} elements cannot be widened; the limit is {}", request.row_elements, kMost));
  }
  auto arguments = arguments_of<GatherWidenArguments>(request, stride);
  arguments.row_elements = request.row_elements;
  arguments.scale = request.scale;
  arguments.shift = request.shift;
  arguments.channels = request.channels;
  arguments.channel_elements = static_cast<std::uint32_t>(std::min(request.channel_elements, kMost));
  arguments.from = static_cast<std::uint32_t>(request.from);
  arguments.to = static_cast<std::uint32_t>(request.to);
  const bool aligned = is_aligned(request, row_bytes, stride);
  const Kernel* kernel = &gather_widen_;
  if (aligned && from_bytes == 1 && to_bytes == 2) kernel = &gather_widen_1_2_;
  if (aligned && from_bytes == 1 && to_bytes == 4) kernel = &gather_widen_1_4_;
  if (aligned && from_bytes == 2 && to_bytes == 4) kernel = &gather_widen_2_4_;
  const std::uint64_t row_chunks = divide_up(row_bytes, kChunk) + (kernel == &gather_widen_ ? 1 : 0);
  launch(*kernel, gather_blocks(request, request.count * row_chunks), kGatherThreads, arguments, stream);
}

void Kernels::split_rows(const SplitRequest& request, Stream stream) const {
  if (request.count == 0 || request.value_count == 0) return;
  const std::uint64_t tiles =
      divide_up(request.count, kSplitRows) * divide_up(request.row_bytes, kSplitSegment);
  const auto blocks = static_cast<unsigned>(
      std::clamp<std::uint64_t>(divide_up(tiles, kSplitThreads / 32), 1,
                                std::uint64_t{multiprocessors_} * kSplitBlocksPerMultiprocessor));
  const SplitRowsArguments arguments{.rows = request.rows,
                                     .row_bytes = request.row_bytes,
                                     .count = request.count,
                                     .destination = request.destination,
                                     .values = reinterpret_cast<const SplitValue*>(request.values),
                                     .firsts = request.firsts};
  launch(split_rows_, blocks, kSplitThreads, arguments, stream);
}

void Kernels::fill_order(const OrderRequest& request, Stream stream) const {
  static_assert(KeyedPermutation::kRounds == kFillOrderRounds);
  const SampleRun& run = request.run;
  if (run.count == 0) return;
  const auto blocks = static_cast<unsigned>(
      std::clamp<std::uint64_t>(divide_up(run.count, kFillOrderThreads), 1,
                                std::uint64_t{multiprocessors_} * kFillOrderBlocksPerMultiprocessor));
  FillOrderArguments arguments{};
  arguments.indices = request.indices;
  arguments.count = run.count;
  arguments.size = run.size;
  arguments.first = run.first % run.size;
  arguments.stride = run.stride % run.size;
  arguments.turn = multiply_modulo(std::uint64_t{blocks} * kFillOrderThreads, arguments.stride, run.size);
  if (run.order) {
    const KeyedPermutation::Network& network = run.order->network();
    arguments.shuffled = 1;
    arguments.right_bits = network.right_bits;
    arguments.left_mask = network.left_mask;
    arguments.right_mask = network.right_mask;
    std::ranges::copy(network.keys, arguments.keys);
    std::ranges::copy(network.late_keys, arguments.late_keys);
  }
  launch(fill_order_, blocks, kFillOrderThreads, arguments, stream);
}

void Kernels::render(const RenderArguments& arguments, Stream stream) const {
  const std::uint64_t pixels = std::uint64_t{arguments.count} * arguments.width * arguments.height;
  launch(render_, static_cast<unsigned>(divide_up(pixels, kRenderThreads)), kRenderThreads, arguments,
         stream);
}

void Kernels::hash(const HashRequest& request, Stream stream) const {
  static_assert(sizeof(HashPart) == sizeof(HashSum) && offsetof(HashPart, high) == offsetof(HashSum, high));
  const std::size_t blocks = HashRequest::sum_count(request.bytes) / (kHashThreads / 32);
  launch(hash_, static_cast<unsigned>(blocks), kHashThreads,
         HashArguments{request.source, request.bytes, reinterpret_cast<HashPart*>(request.sums)}, stream);
}

void Kernels::occupy(std::uint64_t nanoseconds, Stream stream) const {
  launch(occupy_, 1, 1, OccupyArguments{nanoseconds}, stream);
}

}  // namespace penstock::cuda
