#include "data/support.hpp"

#include <penstock/data/readers.hpp>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace penstock {
namespace {

// The fuzzers' seeds (fuzz/make_corpus.py). ok-* opens and can be read; bad-* is refused with the file's name
// and a byte. Findings of a fuzzer are added to them.
struct Seed {
  std::filesystem::path path;
  std::string name() const { return path.parent_path().filename().string() + "_" + path.filename().string(); }
};

constexpr const char* kFolders[] = {"npy", "npz", "safetensors"};

std::vector<Seed> seeds() {
  std::vector<Seed> found;
  for (const char* folder : kFolders) {
    const auto path = std::filesystem::path(PENSTOCK_CORPUS) / folder;
    for (const auto& entry : std::filesystem::directory_iterator(path)) found.push_back({entry.path()});
  }
  std::sort(found.begin(), found.end(), [](const Seed& a, const Seed& b) { return a.path < b.path; });
  return found;
}

std::vector<FieldReaderPtr> read_as(const std::string& format, const std::filesystem::path& path,
                                    const FileOptions& options) {
  if (format == "npz") return read_npz(path, options);
  if (format == "safetensors") return read_safetensors(path, options);
  return {read_npy(path, options)};
}

class Corpus : public ::testing::TestWithParam<Seed> {};

TEST_P(Corpus, OpensOrIsRefusedAsItsNameSays) {
  const auto& path = GetParam().path;
  for (const std::uint64_t load_limit : {0u, 1u << 30}) {
    const auto open = [&] {
      const FileOptions options{load_limit};
      const Dataset dataset(read_as(path.parent_path().filename().string(), path, options));
      std::vector<std::uint64_t> all(dataset.sample_count());
      std::iota(all.begin(), all.end(), 0);
      return test::gather(dataset, 0, all);
    };
    if (path.filename().string().starts_with("ok-")) {
      EXPECT_FALSE(open().empty());
    } else {
      test::expect_error<Error>([&] { static_cast<void>(open()); },
                                {path.filename().string(), ", byte ", "expected"});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Corpus, ::testing::ValuesIn(seeds()), [](const auto& tested) {
  std::string name = tested.param.name();
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(CorpusFiles, AreRefusedForTheirOwnReason) {
  // A later check would refuse these too, but with a message that does not help.
  const std::pair<const char*, const char*> reasons[] = {
      {"npy/bad-shape-overflows-bytes", "fits the address space"},
      {"npy/bad-shape-overflows-product", "fits the address space"},
      {"npz/bad-deflated-trailing", "the end of the deflated data"},
      {"npz/bad-deflated-bomb", "as many bytes as"},
      {"npz/bad-bytes-before", "a directory that ends where its end record begins"},
      {"npz/bad-past-directory", "that ends before byte"},
      {"safetensors/bad-past-end", "bytes of data, found the end of the file"},
  };
  for (const auto& [seed, reason] : reasons) {
    SCOPED_TRACE(seed);
    const auto path = std::filesystem::path(PENSTOCK_CORPUS) / seed;
    test::expect_error<Error>([&] { return read_as(path.parent_path().filename().string(), path, {}); },
                              {reason});
  }
}

TEST(CorpusFiles, AreThere) {
  std::map<std::string, int> right;
  std::map<std::string, int> wrong;
  for (const Seed& seed : seeds()) {
    const std::string folder = seed.path.parent_path().filename().string();
    ++(seed.path.filename().string().starts_with("ok-") ? right : wrong)[folder];
  }
  for (const char* folder : kFolders) {
    EXPECT_GE(right[folder], 5) << folder;
    EXPECT_GE(wrong[folder], 10) << folder;
  }
}

}  // namespace
}  // namespace penstock
