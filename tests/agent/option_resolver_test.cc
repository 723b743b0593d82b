#include "agent/option_resolver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>

namespace statcollect {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

Result<ResolvedOptions> Resolve(const statagent::Options& options,
                                const std::map<std::string, std::string>& variables = {}) {
  return ResolveOptions(options, [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
  });
}

std::string Error(const statagent::Options& options,
                  const std::map<std::string, std::string>& variables = {}) {
  const auto resolved = Resolve(options, variables);
  if (resolved.ok()) return "";
  EXPECT_EQ(resolved.status().code(), Code::kInvalidArgument);
  return resolved.status().message();
}

TEST(OptionResolver, HasDefaults) {
  const auto r = Resolve({.run = "base"});
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r->collector, "127.0.0.1:7433");
  EXPECT_EQ(r->if_exists, IfExists::kError);
  EXPECT_FALSE(r->required);
  EXPECT_EQ(r->sketch, 16u);
  EXPECT_EQ(r->buffer_records_max, 32768u);
  EXPECT_TRUE(r->steps.Contains(123456));
  EXPECT_EQ(r->spill.directory, "") << "no spill file";
}

TEST(OptionResolver, TakesAProject) {
  EXPECT_EQ(Resolve({.run = "r"})->project, "") << "the token's, or the default one";
  EXPECT_EQ(Resolve({.run = "r"}, {{"STATAGENT_PROJECT", "vision"}})->project, "vision");
  EXPECT_EQ(Resolve({.run = "r", .project = "speech"}, {{"STATAGENT_PROJECT", "vision"}})->project,
            "speech");
  EXPECT_THAT(Error({.run = "r", .project = "a/b"}), HasSubstr("project 'a/b'"));
}

TEST(OptionResolver, ATwinNeedsAProgramThatPutsNoiseIntoIt) {
  const std::map<std::string, std::string> variables = {{"STATAGENT_PERTURB", "1"}};
  EXPECT_THAT(Error({.run = "r"}, variables),
              HasSubstr("STATAGENT_PERTURB is '1'; expected nothing"));
  EXPECT_EQ(Error({.run = "r.twin-1-1", .config = {{"recording.perturb", "1"}}}, variables), "");
  EXPECT_EQ(Error({.run = "r"}, {{"STATAGENT_PERTURB", ""}}), "");
}

TEST(OptionResolver, TakesASpillFolderAndItsLimit) {
  auto r = Resolve({.run = "r", .spill_dir = "/scratch"});
  ASSERT_TRUE(r.ok()) << r.status().message();
  EXPECT_EQ(r->spill.directory, "/scratch");
  EXPECT_EQ(r->spill.bytes_max, std::uint64_t{1} << 30);
  r = Resolve({.run = "r"}, {{"STATAGENT_SPILL_DIR", "here"}, {"STATAGENT_SPILL_LIMIT", "20GiB"}});
  ASSERT_TRUE(r.ok()) << r.status().message();
  EXPECT_EQ(r->spill.directory, std::filesystem::current_path() / "here") << "where it is now";
  EXPECT_EQ(r->spill.bytes_max, std::uint64_t{20} << 30);
  for (const char* bad : {"63MiB", "1", "1gib", "-1GiB", "1.5GiB", "9999999999TiB", "GiB"})
    EXPECT_THAT(Error({.run = "r", .spill_limit = bad}), HasSubstr("spill_limit is '")) << bad;
}

TEST(OptionResolver, TakesOnlyThisRanksShareOfTheProcessors) {
  using Variables = std::map<std::string, std::string>;
  const auto threads = [](const Variables& variables) {
    return Resolve({.run = "r"}, variables)->threads;
  };
  EXPECT_EQ(threads({{"OMP_NUM_THREADS", "1"}}), 1u);
  EXPECT_EQ(threads({{"OMP_NUM_THREADS", "3,2"}}), 3u);
  EXPECT_EQ(threads({{"OMP_NUM_THREADS", "96"}}), 4u);
  EXPECT_EQ(threads({{"LOCAL_WORLD_SIZE", "100000"}}), 1u);
  EXPECT_EQ(threads({{"OMPI_COMM_WORLD_LOCAL_SIZE", "100000"}}), 1u);
  EXPECT_EQ(threads({{"OMP_NUM_THREADS", "junk"}, {"LOCAL_WORLD_SIZE", "100000"}}), 1u);
  EXPECT_GE(threads({}), 1u);
  EXPECT_THAT(Error({.run = "r", .threads = 0}), HasSubstr("threads"));
  EXPECT_THAT(Error({.run = "r", .threads = 65}), HasSubstr("1..64"));
}

TEST(OptionResolver, FillsFromTheEnvironmentWhatTheProgramLeavesOpen) {
  const std::map<std::string, std::string> variables = {{"STATAGENT_RUN", "env"},
                                                        {"STATAGENT_COLLECTOR", "[::1]:99"},
                                                        {"STATAGENT_IF_EXISTS", "replace"},
                                                        {"STATAGENT_REQUIRED", "1"},
                                                        {"STATAGENT_RANK", "2"},
                                                        {"STATAGENT_WORLD_SIZE", "4"},
                                                        {"STATAGENT_LOCAL_RANK", "1"},
                                                        {"STATAGENT_LAUNCH", "l"},
                                                        {"STATAGENT_STEPS", "3"},
                                                        {"STATAGENT_SKETCH", "64"},
                                                        {"STATAGENT_SAMPLES", "10"},
                                                        {"STATAGENT_BUFFER_RECORDS_MAX", "100"},
                                                        {"STATAGENT_THREADS", "7"},
                                                        {"STATAGENT_EXPONENTS", "*@3; fc1"},
                                                        {"STATAGENT_CONNECT_TIMEOUT_MS", "50"}};
  auto r = Resolve({}, variables);
  ASSERT_TRUE(r.ok()) << r.status().message();
  EXPECT_EQ(r->run, "env");
  EXPECT_EQ(r->collector, "[::1]:99");
  EXPECT_EQ(r->if_exists, IfExists::kReplace);
  EXPECT_TRUE(r->required);
  EXPECT_EQ(r->launch.rank, 2u);
  EXPECT_EQ(r->launch.world_size, 4u);
  EXPECT_EQ(r->launch.launch, "l");
  EXPECT_FALSE(r->steps.Contains(4));
  EXPECT_EQ(r->sketch, 64u);
  EXPECT_EQ(r->samples, 10u);
  EXPECT_EQ(r->buffer_records_max, 100u);
  EXPECT_EQ(r->connect_timeout, milliseconds(50));
  EXPECT_EQ(r->threads, 7u);
  EXPECT_EQ(r->exponents.size(), 2u);
  r = Resolve({.run = "program", .required = false, .sketch = 0}, variables);
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r->run, "program");
  EXPECT_FALSE(r->required);
  EXPECT_EQ(r->sketch, 0u);
}

TEST(OptionResolver, DisabledNeedsNothingElse) {
  EXPECT_TRUE(Resolve({.run = "../bad"}, {{"STATAGENT_DISABLE", "1"}})->disabled);
  EXPECT_FALSE(Resolve({.run = "good"}, {{"STATAGENT_DISABLE", "0"}})->disabled);
  EXPECT_THAT(Error({.run = "good"}, {{"STATAGENT_DISABLE", "perhaps"}}),
              HasSubstr("STATAGENT_DISABLE is 'perhaps'"));
}

TEST(OptionResolver, SaysWhatIsWrong) {
  EXPECT_THAT(Error({}), HasSubstr("STATAGENT_RUN"));
  EXPECT_NE(Error({.run = "../../etc"}), "");
  EXPECT_THAT(Error({.run = "r", .if_exists = "delete"}),
              HasSubstr("'error', 'replace' or 'append'"));
  EXPECT_THAT(Error({.run = "r", .sketch = 17}), HasSubstr("sketch is '17'"));
  EXPECT_THAT(Error({.run = "r", .samples = 1025}), HasSubstr("samples"));
  EXPECT_THAT(Error({.run = "r", .buffer_records_max = 0}), HasSubstr("buffer_records_max"));
  EXPECT_THAT(Error({.run = "r", .samples = 1024, .buffer_records_max = 1u << 24}),
              HasSubstr("bytes)"));
  EXPECT_THAT(Error({.run = "r", .connect_timeout = milliseconds(-1)}),
              HasSubstr("connect_timeout"));
  EXPECT_NE(Error({.run = "r", .steps = "9-1"}), "");
  EXPECT_THAT(Error({.run = "r", .exponents = "*@3:kind=x"}),
              HasSubstr("start the agent: exponents: kind: found 'x'; expected output, "));
  EXPECT_THAT(Error({.run = "r"}, {{"STATAGENT_RANK", "first"}}),
              HasSubstr("STATAGENT_RANK is 'first'"));
  EXPECT_THAT(Error({.run = "r", .config = {{"a\nb", "x"}}}), HasSubstr("configuration key"));
}

TEST(OptionResolver, LeavesSecretsOutOfTheConfiguration) {
  const auto resolved = Resolve({.run = "r",
                                 .config = {{"smtp_pass", "s3cret"},
                                            {"args.0", "--password"},
                                            {"args.1", "s3cret"},
                                            {"note", "bearer s3cret-s3cret"},
                                            {"max_tokens", "512"}}});
  ASSERT_TRUE(resolved.ok());
  EXPECT_EQ(resolved->config, (std::map<std::string, std::string>{{"smtp_pass", "(redacted)"},
                                                                  {"args.0", "--password"},
                                                                  {"args.1", "(redacted)"},
                                                                  {"note", "bearer (redacted)"},
                                                                  {"max_tokens", "512"}}));
}

TEST(OptionResolver, RefusesWhatIsNoAddress) {
  for (const char* bad :
       {"localhost", "localhost:", ":7433", "localhost:0", "localhost:65536", "localhost:x",
        "http://localhost:7433", "a b:1", "::1:7433", "[::1:7433", "host:1:2"}) {
    EXPECT_THAT(Error({.run = "r", .collector = bad}), HasSubstr("host:port")) << bad;
  }
  for (const char* good :
       {"localhost:7433", "10.0.0.1:1", "[fe80::1]:65535", "collector.example.org:7433"}) {
    EXPECT_EQ(Error({.run = "r", .collector = good}), "") << good;
  }
}

}  // namespace
}  // namespace statcollect
