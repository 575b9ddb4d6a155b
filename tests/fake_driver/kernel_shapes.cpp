#include "device/cuda/kernel_arguments.hpp"
#include "state.hpp"

namespace fake_cuda {

using namespace penstock::cuda;

std::size_t kernel_argument_bytes(const std::string& name) {
  if (name == "penstock_copy_pieces") return sizeof(CopyPiecesArguments);
  if (name.starts_with("penstock_gather_bytes")) return sizeof(GatherBytesArguments);
  if (name.starts_with("penstock_gather_widen")) return sizeof(GatherWidenArguments);
  if (name == "penstock_split_rows") return sizeof(SplitRowsArguments);
  if (name == "penstock_fill_order") return sizeof(FillOrderArguments);
  if (name == "penstock_render") return sizeof(RenderArguments);
  if (name == "penstock_hash") return sizeof(HashArguments);
  return name == "penstock_occupy" ? sizeof(OccupyArguments) : 0;
}

unsigned kernel_threads(const std::string& name) {
  if (name == "penstock_copy_pieces") return kCopyPiecesThreads;
  if (name == "penstock_split_rows") return kSplitThreads;
  if (name == "penstock_fill_order") return kFillOrderThreads;
  if (name == "penstock_render") return kRenderThreads;
  if (name == "penstock_hash") return kHashThreads;
  return name == "penstock_occupy" ? 1 : kGatherThreads;
}

}  // namespace fake_cuda
