#include "core/shared/printable.hpp"

#include <penstock/core/error.hpp>

#include <gtest/gtest.h>

#include <string>

namespace penstock {
namespace {

using namespace std::string_literals;

TEST(Printable, KeepsTextInEveryScript) {
  for (const std::string text : {"", "two\nlines", "3.8 µs", "日本語", "▕███▏ 50 %", "😀", "\\x1b"}) {
    EXPECT_EQ(printable(text), text);
  }
}

TEST(Printable, EscapesWhatCommandsATerminal) {
  EXPECT_EQ(printable("\x1b]0;title\x07"), "\\x1b]0;title\\x07");
  EXPECT_EQ(printable("a\0b\r\t\x7f"s), "a\\x00b\\x0d\\x09\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"), "\\xc2\\x9b") << "the same as escape and [";
  EXPECT_EQ(printable("\u202egpj.exe"), "\\xe2\\x80\\xaegpj.exe") << "turns the direction of writing";
  EXPECT_EQ(printable("\u2066\u2028"), "\\xe2\\x81\\xa6\\xe2\\x80\\xa8");
}

TEST(Printable, EscapesBytesThatAreNotUtf8) {
  EXPECT_EQ(printable("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(printable("\xe4pfel"), "\\xe4pfel");
  EXPECT_EQ(printable("cut \xe2\x82"), "cut \\xe2\\x82");
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf") << "longer than it need be";
  EXPECT_EQ(printable("\xe0\x80\xaf"), "\\xe0\\x80\\xaf");
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "half of a pair";
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "past the last character";
}

TEST(Printable, EveryErrorIs) {
  EXPECT_STREQ(Error("descr '\x1b[2J\0' is unknown"s).what(), "descr '\\x1b[2J\\x00' is unknown");
}

}  // namespace
}  // namespace penstock
