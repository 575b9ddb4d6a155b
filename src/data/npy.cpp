#include "data/file_reader.hpp"
#include "data/npy_header.hpp"

#include <penstock/data/readers.hpp>

#include <algorithm>
#include <utility>
#include <vector>

namespace penstock {

FieldReaderPtr read_npy(const std::filesystem::path& path, const FileOptions& options) {
  File file(path);
  std::vector<std::byte> head(static_cast<std::size_t>(std::min<std::uint64_t>(file.size(), kNpyHeadBytes)));
  head.resize(file.read(0, head));
  NpyHeader header = parse_npy_header(head, file.size(), file.name());
  const std::uint64_t samples = header.shape.front();
  header.shape.erase(header.shape.begin());
  Field field{path.stem().string(), header.dtype, std::move(header.shape)};
  return read_file(std::move(file), std::move(field), header.data_offset, samples, options);
}

}  // namespace penstock
