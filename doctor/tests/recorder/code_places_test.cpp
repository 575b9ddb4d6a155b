#include "doctor/read/code_places.hpp"

#include "doctor/command/code_reader.hpp"
#include "doctor/recorder/native_stack.hpp"
#include "doctor/tests/recorder/recorder_fixture.hpp"
#include "doctor/timeline/frame_names.hpp"
#include "support/matchers.hpp"
#include "support/temp_directory.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace penstock {
namespace {

namespace fs = std::filesystem;

// The stack of a thread

struct Caller {
  std::string file;
  std::uint64_t address = 0;
};

std::vector<Caller> locate(const std::vector<std::uintptr_t>& calls) {
  std::vector<Caller> callers;
  for (const std::uintptr_t call : calls) {
    char file[4096];
    Caller caller;
    if (recorder::locate_code(call, file, caller.address)) caller.file = file;
    callers.push_back(caller);
  }
  return callers;
}

[[gnu::noinline]] std::vector<std::uintptr_t> calls_seen(const recorder::NativeStack& stack,
                                                         std::size_t most) {
  std::vector<std::uintptr_t> calls(most);
  calls.resize(stack.own(calls));
  return calls;
}

/// The functions of this program in which the thread is.
std::vector<std::string> functions_of(const std::vector<Caller>& callers) {
  const fs::path program = fs::read_symlink("/proc/self/exe");
  std::vector<std::uint64_t> addresses;
  for (const Caller& caller : callers) {
    if (caller.file == program) addresses.push_back(caller.address);
  }
  std::vector<std::string> names;
  for (const auto& places : cli::LineReader()(program, addresses)) {
    for (const CodePlace& place : places) names.push_back(place.function);
  }
  return names;
}

TEST(NativeStack, NamesTheFunctionsThatAThreadIsIn) {
  if (!testing::has_addr2line()) GTEST_SKIP() << "there is no addr2line";
  const std::vector<Caller> callers = locate(calls_seen({}, 32));
  ASSERT_THAT(callers, SizeIs(Ge(4U)));
  const std::vector<std::string> names = functions_of(callers);
  EXPECT_THAT(names, Contains(HasSubstr("calls_seen")));
  EXPECT_THAT(names, Contains(HasSubstr("NativeStack_NamesTheFunctionsThatAThreadIsIn_Test::TestBody()")));
  EXPECT_EQ(callers.front().file, fs::read_symlink("/proc/self/exe"));
}

TEST(NativeStack, LeavesOutTheLibrariesItBeginsWith) {
  recorder::NativeStack stack;
  stack.hide(reinterpret_cast<const void*>(&recorder::locate_code));
  std::vector<Caller> callers;
  std::thread([&] { callers = locate(calls_seen(stack, 32)); }).join();
  ASSERT_FALSE(callers.empty());
  EXPECT_NE(callers.front().file, fs::read_symlink("/proc/self/exe")) << "a thread begins in another library";
}

TEST(NativeStack, FillsNoMoreThanThereIsRoom) {
  EXPECT_THAT(calls_seen({}, 2), SizeIs(2));
  EXPECT_THAT(calls_seen({}, 0), IsEmpty());
}

TEST(NativeStack, TellsAddressesThatAreNoCode) {
  char file[4096];
  char none[1];
  std::uint64_t address = 0;
  EXPECT_FALSE(recorder::locate_code(16, file, address));
  EXPECT_FALSE(recorder::locate_code(reinterpret_cast<std::uintptr_t>(&calls_seen), none, address));
}

// Names of places

/// A recording of calls at these addresses of a file that is there, each on its own stack.
class CodePlaces : public ::testing::Test {
 protected:
  CodePlaces() {
    std::ofstream(file_) << "no ELF";
    recording_.began = INT64_MAX;
  }
  void call(const std::vector<std::uint64_t>& addresses) {
    CodeStack stack{static_cast<std::uint32_t>(recording_.timeline.names.size()), {}};
    for (const std::uint64_t address : addresses) stack.calls.push_back({file_, address});
    recording_.timeline.names.push_back("program: +0x" + std::to_string(addresses[0]));
    recording_.timeline.host.push_back({{0, 1}, stack.name, 0, HostSpanKind::frame});
    recording_.code_stacks.push_back(stack);
  }
  /// The names of the calls' places.
  std::vector<std::string> names() {
    const auto read = [this](const fs::path& file, std::span<const std::uint64_t> addresses) {
      EXPECT_EQ(file, file_);
      std::vector<std::vector<CodePlace>> places;
      for (const std::uint64_t address : addresses) places.push_back(code_[address]);
      return places;
    };
    name_code_places(recording_, read);
    std::vector<std::string> names;
    for (const TimelineHostSpan& span : recording_.timeline.host)
      names.push_back(recording_.timeline.names[span.name]);
    return names;
  }

  test::TempDirectory folder_;
  fs::path file_ = folder_.path() / "program";
  Recording recording_;
  std::map<std::uint64_t, std::vector<CodePlace>> code_;
};

TEST_F(CodePlaces, AreTheInnermostLinesOfTheProgram) {
  code_[1] = {{"std::copy(int*)", "/usr/include/c++/13/bits/stl_algo.h", 5},
              {"send(int)", "/src/a/../copy.cpp", 12}};
  code_[2] = {{"main", "/src/main.cpp", 30}};
  code_[3] = {{"helper()", "", 0}};
  code_[4] = {{"", "/src/inlined.cpp", 7}};
  call({1, 2});
  call({3, 2});
  call({4, 2});
  EXPECT_THAT(names(),
              ElementsAre("/src/copy.cpp(12): send(int)", "/src/main.cpp(30): main", "/src/inlined.cpp(7)"));
}

TEST_F(CodePlaces, AreFunctionsIfThereAreNoLines) {
  code_[1] = {{"libcudart_static_0123", "", 0}};
  code_[2] = {{"cudaMemcpyAsync", "", 0}};
  code_[3] = {{"cuMemcpyHtoD_v2", "", 0}};
  code_[4] = {{"customers::send(int)", "", 0}};
  call({1, 2, 3, 4});
  call({5});
  EXPECT_THAT(names(), ElementsAre("program: customers::send(int)", "program: +0x5"));
}

TEST_F(CodePlaces, AreNotPenstocksOwnInProgramsThatUseIt) {
  code_[1] = {{"penstock::Stream::copy(int)", "/src/penstock/stream.cpp", 3}};
  code_[2] = {{"main", "/src/main.cpp", 30}};
  code_[3] = {{"penstock::Loader::next(int)", "", 0}};
  code_[4] = {{"customers::feed(int)", "", 0}};
  code_[5] = {{"operator()", "/src/penstock/ring.cpp", 4}};
  code_[6] = {{"void penstock::nap_until<bool (*)()>(bool)", "/src/penstock/ring.cpp", 9}};
  code_[7] = {{"std::_Function_handler<bool (int)>::_M_invoke(int)", "", 0}};
  code_[8] = {{"operator()", "/src/main.cpp", 25}};
  call({1, 2});
  call({3, 4});
  call({5, 6, 2});
  call({7, 3, 4});
  call({1, 8, 2});
  call({1, 3});
  EXPECT_THAT(names(), ElementsAre("/src/main.cpp(30): main", "program: customers::feed(int)",
                                   "/src/main.cpp(30): main", "program: customers::feed(int)",
                                   "/src/main.cpp(25): operator()",
                                   "/src/penstock/stream.cpp(3): penstock::Stream::copy(int)"))
      << "the last is a program of its own";
}

TEST_F(CodePlaces, OfOneLineAreOnePlace) {
  code_[1] = code_[2] = {{"main", "/src/main.cpp", 30}};
  call({1});
  call({2});
  EXPECT_THAT(names(), SizeIs(2));
  EXPECT_EQ(recording_.timeline.host[0].name, recording_.timeline.host[1].name);
}

TEST_F(CodePlaces, TellTheFramesThatCallThem) {
  code_[1] = {{"std::copy(int*)", "/usr/include/c++/13/bits/stl_algo.h", 5},
              {"send(int)", "/src/copy.cpp", 12},
              {"each(int)", "/src/copy.cpp", 20},
              {"each(int)", "", 0}};
  code_[2] = {{"penstock::Loader::run(int)", "/src/penstock/loader.cpp", 4}};
  code_[3] = {{"helper()", "", 0}, {"helper()", "", 0}};
  code_[4] = {{"std::invoke(int)", "/usr/include/c++/13/functional", 7}, {"std::invoke(int)", "", 0}};
  code_[5] = {{"main", "/src/main.cpp", 30}, {"main", "", 0}};
  code_[6] = {{"__libc_start_main_impl", "", 0}};
  code_[7] = {{"_start", "", 0}};
  call({1, 2, 3, 4, 5, 6, 7, 99});
  call({1, 5});
  call({99, 3});
  EXPECT_THAT(names(), ElementsAre("/src/copy.cpp(12): send(int)", "/src/copy.cpp(12): send(int)",
                                   "program: helper()"));
  const auto stack = [this](std::size_t call) {
    return stack_of(recording_.timeline, recording_.timeline.host[call].name);
  };
  EXPECT_THAT(stack(0), ElementsAre("/src/copy.cpp(12): send(int)", "/src/copy.cpp(20): each(int)",
                                    "program: helper()", "/src/main.cpp(30): main"));
  EXPECT_THAT(stack(1), ElementsAre("/src/copy.cpp(12): send(int)", "/src/copy.cpp(20): each(int)",
                                    "/src/main.cpp(30): main"));
  EXPECT_THAT(stack(2), ElementsAre("program: helper()"));
}

TEST_F(CodePlaces, OfCodeThatNobodyKnowsAreAddresses) {
  call({1});
  EXPECT_THAT(names(), ElementsAre("program: +0x1"));
  EXPECT_THAT(recording_.timeline.notes, ElementsAre(HasSubstr("They need addr2line")));
}

TEST_F(CodePlaces, OfAFileThatHasChangedAreAddresses) {
  struct stat now{};
  ASSERT_EQ(::stat(file_.c_str(), &now), 0);
  code_[1] = {{"main", "/src/main.cpp", 30}};
  call({1});
  recording_.began = now.st_mtime - 1;
  EXPECT_THAT(names(), ElementsAre("program: +0x1"));
  EXPECT_THAT(recording_.timeline.notes, ElementsAre(HasSubstr("has changed since the recording")));
  recording_.began = now.st_mtime;
  EXPECT_THAT(names(), ElementsAre("/src/main.cpp(30): main"));
}

}  // namespace
}  // namespace penstock
