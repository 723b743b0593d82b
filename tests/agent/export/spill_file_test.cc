#include "agent/export/spill_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace statcollect {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string Hex(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const char c : bytes) {
    hex += kDigits[static_cast<unsigned char>(c) >> 4];
    hex += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return hex;
}

TEST(SpillFormat, GoldenBytes) {
  EXPECT_EQ(Hex(spill::EncodeHead("hello")),
            "737461747370696c01000000050000004cbb719a0000000000000000282c1cfc");
  EXPECT_EQ(Hex(spill::EncodeMark({.offset = 69, .seq = 258})),
            "450000000000000002010000000000000000000000000000000000005a8a6116");
  EXPECT_EQ(Hex(spill::EncodeFrameHead({.payload_bytes = 3,
                                        .records = 2,
                                        .activations_before = 4,
                                        .layouts_before = 5,
                                        .activations_after = 6,
                                        .layouts_after = 7,
                                        .payload_crc = 0x01020304})),
            "03000000020000000400000005000000060000000700000004030201011f3095");
}

TEST(SpillFormat, RefusesOtherVersionsForeignBytesAndFlippedBits) {
  std::string head = spill::EncodeHead("hello");
  EXPECT_EQ(spill::DecodeHead(head)->frames_at(), spill::kHeadBytes + 5);
  head[8] = 2;
  EXPECT_EQ(spill::DecodeHead(head).status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(spill::DecodeHead(head).status().message(),
              HasSubstr("version is 2; this build reads 1"));
  EXPECT_EQ(spill::DecodeHead("something else that is long enough").status().code(),
            Code::kDataLoss);
  EXPECT_EQ(spill::DecodeHead("").status().code(), Code::kDataLoss);
  const std::string whole = spill::EncodeHead("hello") +
                            spill::EncodeMark({.offset = 69, .seq = 1}) +
                            spill::EncodeFrameHead({.payload_bytes = 3, .records = 2});
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    const std::string_view bytes = flipped;
    EXPECT_FALSE(spill::DecodeHead(bytes.substr(0, spill::kMarkAt)).ok() &&
                 spill::DecodeMark(bytes.substr(spill::kMarkAt, spill::kMarkBytes)).ok() &&
                 spill::DecodeFrameHead(bytes.substr(spill::kHeadBytes)).ok())
        << bit;
  }
}

class SpillFileTest : public ::testing::Test {
 protected:
  static std::string MakeDirectory() {
    std::string pattern = ::testing::TempDir() + "spill_XXXXXX";
    return mkdtemp(pattern.data());
  }
  ~SpillFileTest() override { fs::remove_all(directory_); }

  static EncodedBatch Batch(std::uint32_t records, std::string bytes) {
    EncodedBatch batch;
    batch.records = records;
    batch.before = {.activations = 1, .layouts = 2};
    batch.after = {.activations = 3, .layouts = 4};
    batch.bytes = std::move(bytes);
    return batch;
  }
  void Flip(std::uint64_t offset) {
    std::fstream file(file_.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(static_cast<char>(byte ^ 16));
  }

  const std::string directory_ = MakeDirectory();
  SpillFile file_{
      {.directory = directory_, .bytes_max = 1u << 20}, 3, SessionId{0xab}, "the hello"};
};

TEST_F(SpillFileTest, GivesBackWhatWasPutIn) {
  ASSERT_TRUE(file_.CheckDirectory().ok());
  ASSERT_TRUE(file_.Create(7).ok());
  FileSpan first, second;
  ASSERT_TRUE(file_.Append(Batch(5, "five"), &first).ok());
  ASSERT_TRUE(file_.Append(Batch(9, ""), &second).ok());
  EXPECT_EQ(first.begin, spill::kHeadBytes + 9);
  EXPECT_EQ(second.begin, first.end);
  spill::FrameHead head;
  const auto batch = file_.Read(first.begin, &head);
  ASSERT_TRUE(batch.ok()) << batch.status().message();
  EXPECT_EQ(batch->records, 5u);
  EXPECT_EQ(batch->bytes, "five");
  EXPECT_EQ(batch->before, (DefinitionCounts{.activations = 1, .layouts = 2}));
  EXPECT_EQ(batch->after, (DefinitionCounts{.activations = 3, .layouts = 4}));
  EXPECT_EQ(batch->file.end, first.end);
  EXPECT_EQ(file_.Read(second.begin, &head)->records, 9u);
  EXPECT_EQ(file_.Read(second.end, &head).status().code(), Code::kDataLoss) << "the end";
}

TEST_F(SpillFileTest, IsForItsOwnerOnlyNamedAfterTheSessionAndGoneWhenRemoved) {
  ASSERT_TRUE(file_.Create(1).ok());
  EXPECT_EQ(file_.path(), directory_ + "/rank3-ab" + std::string(30, '0') + ".spill");
  struct stat found {};
  ASSERT_EQ(stat(file_.path().c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
  file_.Remove();
  EXPECT_FALSE(fs::exists(file_.path()));
  EXPECT_TRUE(file_.Create(1).ok()) << "again";
}

TEST_F(SpillFileTest, DoesNotTouchAFileThatIsThereAlready) {
  std::ofstream(file_.path()) << "somebody's";
  EXPECT_THAT(file_.Create(1).message(), HasSubstr(file_.path()));
  EXPECT_FALSE(file_.exists());
  std::ifstream in(file_.path());
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), "somebody's");
}

TEST_F(SpillFileTest, CountsWhatEndedProcessesLeftAndNothingElse) {
  EXPECT_EQ(CountLeftFiles(directory_ + "/nowhere"), 0u);
  std::ofstream(directory_ + "/rank0-new.ring");  // not locked yet
  std::ofstream(directory_ + "/notes.txt") << "text";
  fs::create_directory(directory_ + "/folder.spill");
  fs::create_symlink("notes.txt", directory_ + "/link.ring");
  ASSERT_TRUE(file_.Create(1).ok());
  EXPECT_EQ(CountLeftFiles(directory_), 0u) << "its process lives";
  std::ofstream(directory_ + "/rank0-old.ring") << "values";
  EXPECT_EQ(CountLeftFiles(directory_), 1u);
  file_.Close();
  EXPECT_EQ(CountLeftFiles(directory_), 2u);
}

TEST_F(SpillFileTest, TellsAFlippedBitAndHowMuchItLoses) {
  ASSERT_TRUE(file_.Create(1).ok());
  FileSpan at;
  ASSERT_TRUE(file_.Append(Batch(5, "five records"), &at).ok());
  spill::FrameHead head;
  Flip(at.end - 1);
  EXPECT_EQ(file_.Read(at.begin, &head).status().code(), Code::kDataLoss);
  EXPECT_EQ(head.records, 5u) << "its head still tells";
  Flip(at.begin + 4);
  EXPECT_EQ(file_.Read(at.begin, &head).status().code(), Code::kDataLoss);
  EXPECT_EQ(head.records, 0u);
}

TEST_F(SpillFileTest, HasACapAndGivesTheDiskBackBeforeTheFileEnds) {
  ASSERT_TRUE(file_.Create(1).ok());
  FileSpan at;
  while (file_.Fits(64u << 10))
    ASSERT_TRUE(file_.Append(Batch(1, std::string(64u << 10, 'x')), &at).ok());
  EXPECT_LE(file_.bytes(), 1u << 20);
  EXPECT_GT(file_.bytes(), 900u << 10);
  struct stat before {
  }, after{};
  stat(file_.path().c_str(), &before);
  file_.FreeBefore(at.begin);
  stat(file_.path().c_str(), &after);
  EXPECT_LT(after.st_blocks, before.st_blocks / 4);
  EXPECT_LT(file_.bytes(), 100u << 10);
  EXPECT_TRUE(file_.Fits(64u << 10));
  spill::FrameHead head;
  EXPECT_TRUE(file_.Read(at.begin, &head).ok());
}

// Writes beyond a limit of the process fail in the kernel, in the middle of a frame.
TEST_F(SpillFileTest, AWriteThatFailsLeavesTheFileAsItWas) {
  ASSERT_TRUE(file_.Create(1).ok());
  FileSpan first, second;
  ASSERT_TRUE(file_.Append(Batch(1, std::string(1000, 'a')), &first).ok());
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit low{.rlim_cur = first.end + 500, .rlim_max = limit.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  const Status failed = file_.Append(Batch(2, std::string(1000, 'b')), &second);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(failed.message(), HasSubstr("write spill file " + file_.path() + ": File too large"));
  EXPECT_EQ(fs::file_size(file_.path()), first.end);
  ASSERT_TRUE(file_.Append(Batch(3, std::string(1000, 'c')), &second).ok());
  EXPECT_EQ(second.begin, first.end);
  spill::FrameHead head;
  EXPECT_EQ(file_.Read(second.begin, &head)->bytes, std::string(1000, 'c'));
}

TEST(SpillFile, MakesAFolderForThisUserOnlyAndSaysWhereOthersMayRemoveFiles) {
  const std::string folder = ::testing::TempDir() + "/spill_open/below";
  fs::remove_all(::testing::TempDir() + "/spill_open");
  const mode_t before = umask(0);
  const SpillFile file({.directory = folder}, 0, {}, "");
  EXPECT_TRUE(file.CheckDirectory().ok());
  umask(before);
  EXPECT_EQ(fs::status(folder).permissions(), fs::perms::owner_all);
  EXPECT_EQ(file.Remark(), "");
  ASSERT_EQ(chmod(folder.c_str(), 0777), 0);
  EXPECT_THAT(file.Remark(), HasSubstr("other users may remove files in this folder"));
  ASSERT_EQ(chmod(folder.c_str(), 01777), 0);
  EXPECT_EQ(file.Remark(), "") << "each removes only what is his";
  fs::remove_all(::testing::TempDir() + "/spill_open");
}

TEST(SpillFile, SaysWhyAFolderCannotBeUsed) {
  const std::string file = ::testing::TempDir() + "/spill_no_folder";
  std::ofstream(file) << "x";
  const Status status = SpillFile({.directory = file + "/below"}, 0, {}, "").CheckDirectory();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("spill_dir '" + file + "/below': Not a directory"));
  fs::remove(file);
}

}  // namespace
}  // namespace statcollect
