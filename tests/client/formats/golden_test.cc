// Every variant of every format, as committed under golden/: what its observations are. After a
// change on purpose: STATCOLLECT_UPDATE_GOLDEN=1 client_formats_test, and read the difference.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/formats/dump.h"
#include "common/names.h"
#include "tests/client/formats/observations.h"

namespace statcollect::client::formats {
namespace {

namespace fs = std::filesystem;

struct Golden {
  const char* name;
  DumpFormat format;
  ReadOptions options;
  const char* expected = "expected.txt";
  const char* below = "";  // the path within the dump
};

std::ostream& operator<<(std::ostream& out, const Golden& golden) {
  return out << golden.name << golden.expected;
}

class GoldenDump : public ::testing::TestWithParam<Golden> {};

TEST_P(GoldenDump, GivesTheObservationsThatAreCommitted) {
  const Golden& golden = GetParam();
  const fs::path folder = fs::path(GOLDEN_DIR) / Name(golden.format) / golden.name;
  ReadOptions options = golden.options;
  options.path = folder / "dump";
  if (*golden.below != '\0') options.path += std::string("/") + golden.below;
  const std::string found = RenderDump(golden.format, options);
  if (std::getenv("STATCOLLECT_UPDATE_GOLDEN") != nullptr)
    std::ofstream(folder / golden.expected) << found;
  std::stringstream expected;
  expected << std::ifstream(folder / golden.expected).rdbuf();
  EXPECT_EQ(found, expected.str());
}

INSTANTIATE_TEST_SUITE_P(
    Ort, GoldenDump,
    ::testing::Values(Golden{"steps", DumpFormat::kOrt, {}},
                      Golden{"variants", DumpFormat::kOrt, {}},
                      Golden{"variants",
                             DumpFormat::kOrt,
                             {.trust_std = true, .samples = true},
                             "expected_trusted.txt"},
                      Golden{"merged", DumpFormat::kOrt, {}},
                      Golden{"ranks", DumpFormat::kOrt, {.rank_pattern = "out_{rank}"}}));

INSTANTIATE_TEST_SUITE_P(Torch, GoldenDump,
                         ::testing::Values(Golden{"tensors", DumpFormat::kSglang, {}},
                                           Golden{"passes", DumpFormat::kSglang, {}},
                                           Golden{"ranks", DumpFormat::kDebugMode, {}},
                                           Golden{"text", DumpFormat::kDebugMode, {}},
                                           Golden{"ranks", DumpFormat::kTransformerEngine, {}}));

INSTANTIATE_TEST_SUITE_P(
    MsProbe, GoldenDump,
    ::testing::Values(
        Golden{"statistics", DumpFormat::kMsProbe, {}},
        Golden{"checksums", DumpFormat::kMsProbe, {}},
        Golden{"processes", DumpFormat::kMsProbe, {}},
        Golden{"mindspore", DumpFormat::kMsProbe, {}},
        Golden{"statistics",
               DumpFormat::kMsProbe,
               {.rank = 7},
               "expected_one_rank.txt",
               "step2/rank1"},
        Golden{"checksums", DumpFormat::kMsProbe, {}, "expected_file.txt", "dump.json"}));

INSTANTIATE_TEST_SUITE_P(
    MindSpore, GoldenDump,
    ::testing::Values(
        Golden{"ranks", DumpFormat::kMindSpore, {}}, Golden{"counts", DumpFormat::kMindSpore, {}},
        Golden{"old_host", DumpFormat::kMindSpore, {}},
        Golden{"device_2024", DumpFormat::kMindSpore, {}},
        Golden{"older", DumpFormat::kMindSpore, {}}, Golden{"raw", DumpFormat::kMindSpore, {}},
        Golden{"tensors", DumpFormat::kMindSpore, {}},
        Golden{"ranks", DumpFormat::kMindSpore, {}, "expected_part.txt", "rank_1/Net/0/3"},
        Golden{"counts",
               DumpFormat::kMindSpore,
               {.rank = 3},
               "expected_file.txt",
               "Net/0/7/statistic.csv"}));

}  // namespace
}  // namespace statcollect::client::formats
