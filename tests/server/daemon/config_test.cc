#include "server/daemon/config.h"

#include <filesystem>
#include <fstream>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace statcollect {
namespace {

using ::testing::HasSubstr;

ParsedCommandLine Parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "statcollectord");
  return ParseCommandLine(static_cast<int>(arguments.size()), arguments.data(), "9.9");
}

std::string ErrorOf(std::vector<const char*> arguments) {
  const ParsedCommandLine parsed = Parse(std::move(arguments));
  EXPECT_EQ(parsed.exit_code, 2) << parsed.text;
  return parsed.text;
}

TEST(Config, DefaultsAreThoseOfTheInterface) {
  const ParsedCommandLine parsed = Parse({});
  ASSERT_FALSE(parsed.exit_code) << parsed.text;
  EXPECT_EQ(parsed.config.data_dir, "./statcollect-data");
  EXPECT_EQ(parsed.config.listen.ToString(), "127.0.0.1:7433");
  EXPECT_EQ(parsed.config.http->ToString(), "127.0.0.1:7434");
  EXPECT_TRUE(parsed.config.fsync);
}

TEST(Config, TakesFlags) {
  const ParsedCommandLine parsed = Parse(
      {"--data-dir", "/d", "--listen", "[::1]:0", "--http", "off", "--durability", "process"});
  ASSERT_FALSE(parsed.exit_code) << parsed.text;
  EXPECT_EQ(parsed.config.data_dir, "/d");
  EXPECT_EQ(parsed.config.listen.ToString(), "[::1]:0");
  EXPECT_FALSE(parsed.config.http);
  EXPECT_FALSE(parsed.config.fsync);
}

TEST(Config, RefusesWhatCannotBeMeant) {
  EXPECT_THAT(ErrorOf({"--disk-free-min", "-1"}), HasSubstr("--disk-free-min"));
  EXPECT_THAT(ErrorOf({"--disk-free-min", "99999999"}), HasSubstr("--disk-free-min"));
  EXPECT_THAT(ErrorOf({"--restore-from", ""}), HasSubstr("--restore-from"));
}

TEST(Config, TakesLimitsOnConnections) {
  const ParsedCommandLine parsed =
      Parse({"--connections-max", "12", "--http-connections-max", "34", "--grpc-memory-mib", "56"});
  ASSERT_FALSE(parsed.exit_code) << parsed.text;
  EXPECT_EQ(parsed.config.connections_max, 12u);
  EXPECT_EQ(parsed.config.http_connections_max, 34u);
  EXPECT_EQ(parsed.config.grpc_memory_mib, 56u);
  for (const char* flag : {"--connections-max", "--http-connections-max", "--grpc-memory-mib"}) {
    for (const char* wrong : {"0", "-1", "many", "99999999999"})
      EXPECT_THAT(ErrorOf({flag, wrong}), HasSubstr(flag)) << wrong;
  }
}

TEST(Config, TakesRetentionInUnitsForPeople) {
  EXPECT_EQ(Parse({}).config.retention.count(), 0);
  EXPECT_EQ(Parse({"--retention", "30d"}).config.retention, std::chrono::hours(30 * 24));
  EXPECT_EQ(Parse({"--retention", "90min"}).config.retention, std::chrono::minutes(90));
  EXPECT_EQ(Parse({"--max-disk", "80%"}).config.max_disk.percent, 80u);
  EXPECT_EQ(Parse({"--max-disk", "200GiB"}).config.max_disk.bytes, std::uint64_t{200} << 30);
  for (const char* wrong :
       {"", "30", "0d", "-1d", "30 d", "30x", "99999999999999999999d", "400000w"}) {
    EXPECT_THAT(ErrorOf({"--retention", wrong}), HasSubstr("such as 30d, or off")) << wrong;
  }
  for (const char* wrong : {"200", "0%", "101%", "200GB", "99999999TiB"}) {
    EXPECT_THAT(ErrorOf({"--max-disk", wrong}), HasSubstr("such as 80%, or off")) << wrong;
  }
}

TEST(Config, TakesLimitsOfDiskForAllProjectsAndForOne) {
  EXPECT_FALSE(Parse({}).config.project_limits.any());
  const auto limits = Parse({"--project-disk-max", "200GiB", "--project-disk-max", "vision=1TiB",
                             "--project-disk-max", "speech=off"})
                          .config.project_limits;
  EXPECT_EQ(limits.Of("audio"), std::uint64_t{200} << 30);
  EXPECT_EQ(limits.Of("vision"), std::uint64_t{1} << 40);
  EXPECT_EQ(limits.Of("speech"), 0u);
  for (const char* wrong : {"", "200", "=1GiB", "a b=1GiB", "vision=", "vision=80%"})
    EXPECT_THAT(ErrorOf({"--project-disk-max", wrong}), HasSubstr("--project-disk-max")) << wrong;
  EXPECT_THAT(ErrorOf({"--project-disk-max", "1GiB", "--store", "clickhouse://127.0.0.1:8123/x"}),
              HasSubstr("where the size of a run is not known"));
}

TEST(Config, TakesTheMostThatAQueryMayRead) {
  EXPECT_EQ(Parse({}).config.query_scan_bytes_max, std::uint64_t{64} << 30);
  EXPECT_EQ(Parse({"--query-scan-max", "512MiB"}).config.query_scan_bytes_max,
            std::uint64_t{512} << 20);
  EXPECT_EQ(Parse({"--query-scan-max", "off"}).config.query_scan_bytes_max, ~std::uint64_t{0});
  for (const char* wrong : {"", "0GiB", "64", "80%", "-1GiB", "99999999TiB"})
    EXPECT_THAT(ErrorOf({"--query-scan-max", wrong}), HasSubstr("such as 64GiB, or off")) << wrong;
}

TEST(Config, SampleConfigurationFileIsValid) {
  const ParsedCommandLine parsed = Parse({"--config", SAMPLE_CONFIG});
  ASSERT_FALSE(parsed.exit_code) << parsed.text;
  EXPECT_EQ(parsed.config.data_dir, "/var/lib/statcollect");
}

TEST(Config, FlagWinsOverFile) {
  const ParsedCommandLine parsed = Parse({"--config", SAMPLE_CONFIG, "--data-dir", "/elsewhere"});
  ASSERT_FALSE(parsed.exit_code) << parsed.text;
  EXPECT_EQ(parsed.config.data_dir, "/elsewhere");
}

TEST(Config, UnknownKeyInFileIsAnError) {
  const auto path = std::filesystem::path(testing::TempDir()) / "statcollectord_unknown_key.toml";
  std::ofstream(path) << "data-dri = \"/x\"\n";
  EXPECT_THAT(ErrorOf({"--config", path.c_str()}), HasSubstr("data-dri"));
  std::filesystem::remove(path);
}

TEST(Config, MissingFileIsNamed) {
  EXPECT_THAT(ErrorOf({"--config", "/no/such.toml"}), HasSubstr("/no/such.toml"));
}

TEST(Config, RefusesWrongFlagsWithTheNextStep) {
  EXPECT_THAT(ErrorOf({"--no-such-flag"}), HasSubstr("--help"));
  EXPECT_THAT(ErrorOf({"--listen", "localhost"}), HasSubstr("HOST:PORT"));
  EXPECT_THAT(ErrorOf({"--listen", "127.0.0.1:70000"}), HasSubstr("65535"));
  EXPECT_THAT(ErrorOf({"--durability", "maybe"}), HasSubstr("fsync"));
}

TEST(Config, RefusesAddressesOthersCanReachUnlessInsecure) {
  EXPECT_THAT(ErrorOf({"--listen", "0.0.0.0:7433"}), HasSubstr("--insecure"));
  EXPECT_THAT(ErrorOf({"--http", "10.1.2.3:80"}), HasSubstr("--insecure"));
  EXPECT_FALSE(Parse({"--listen", "0.0.0.0:7433", "--insecure"}).exit_code);
}

TEST(Config, HelpAndVersionAreNoErrors) {
  EXPECT_EQ(Parse({"--help"}).exit_code, 0);
  EXPECT_THAT(Parse({"--help"}).text, HasSubstr("Examples:"));
  EXPECT_EQ(Parse({"--version"}).text, "statcollectord 9.9\n");
}

}  // namespace
}  // namespace statcollect
