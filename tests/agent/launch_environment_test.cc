#include "agent/launch_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace statcollect {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

GetEnv From(Variables variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
  };
}

Result<Launch> Detect(const Variables& variables, const LaunchOptions& options = {},
                      const std::string& parent = "100:5") {
  return DetectLaunch(options, From(variables), [parent] { return parent; });
}

const Variables kTorchrun = {{"RANK", "3"},
                             {"LOCAL_RANK", "1"},
                             {"WORLD_SIZE", "4"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"TORCHELASTIC_RUN_ID", "none"},
                             {"MASTER_ADDR", "10.0.0.1"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_RESTART_COUNT", "0"}};

TEST(LaunchEnvironment, IsRankZeroOfOneWithoutALauncher) {
  const auto launch = Detect({});
  ASSERT_TRUE(launch.ok());
  EXPECT_EQ(launch->rank, 0u);
  EXPECT_EQ(launch->world_size, 1u);
  EXPECT_EQ(launch->id, "");
}

TEST(LaunchEnvironment, RanksThatRecordAreOfItsWorld) {
  EXPECT_EQ(Detect(kTorchrun)->recording.count(), 4u);
  const auto some = Detect(kTorchrun, {.ranks = "0,2-3"});
  ASSERT_TRUE(some.ok());
  EXPECT_EQ(some->recording.Text(), "0,2-3");
  EXPECT_EQ(some->recording.CountBelow(some->rank), 2u);
  const auto beyond = Detect(kTorchrun, {.ranks = "0,4"});
  EXPECT_EQ(beyond.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(beyond.status().message(), HasSubstr("start the agent: read ranks '0,4': part '4' is "
                                                   "beyond the last rank, 3 of a world of 4"));
}

TEST(LaunchEnvironment, ReadsTorchrun) {
  const auto launch = Detect(kTorchrun);
  ASSERT_TRUE(launch.ok());
  EXPECT_EQ(launch->launcher, "torchrun");
  EXPECT_EQ(launch->rank, 3u);
  EXPECT_EQ(launch->local_rank, 1u);
  EXPECT_EQ(launch->world_size, 4u);
}

TEST(LaunchEnvironment, ReadsOpenMpiPmiAndSlurm) {
  auto launch = Detect({{"OMPI_COMM_WORLD_RANK", "1"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                        {"OMPI_COMM_WORLD_SIZE", "2"}});
  ASSERT_TRUE(launch.ok());
  EXPECT_EQ(launch->launcher, "openmpi");
  EXPECT_EQ(launch->rank, 1u);
  EXPECT_EQ(launch->local_rank, 1u);
  EXPECT_EQ(launch->world_size, 2u);
  launch = Detect({{"PMI_RANK", "5"}, {"PMI_SIZE", "6"}, {"MPI_LOCALRANKID", "2"}});
  ASSERT_TRUE(launch.ok());
  EXPECT_EQ(launch->rank, 5u);
  EXPECT_EQ(launch->local_rank, 2u);
  launch = Detect({{"SLURM_PROCID", "7"},
                   {"SLURM_LOCALID", "3"},
                   {"SLURM_NTASKS", "8"},
                   {"SLURM_JOB_ID", "42"}});
  ASSERT_TRUE(launch.ok());
  EXPECT_EQ(launch->rank, 7u);
  EXPECT_EQ(launch->world_size, 8u);
  EXPECT_THAT(launch->id, HasSubstr("42"));
}

TEST(LaunchEnvironment, TorchrunWinsOverSlurmThatStartedIt) {
  Variables both = kTorchrun;
  both["SLURM_PROCID"] = "0";
  both["SLURM_NTASKS"] = "2";
  EXPECT_EQ(Detect(both)->rank, 3u);
}

TEST(LaunchEnvironment, ExplicitOptionsWin) {
  const auto launch =
      Detect(kTorchrun, {.rank = 1, .local_rank = 0, .world_size = 2, .launch = "mine"});
  ASSERT_TRUE(launch.ok());
  EXPECT_EQ(launch->rank, 1u);
  EXPECT_EQ(launch->world_size, 2u);
  EXPECT_EQ(launch->id, "mine");
  EXPECT_EQ(Detect(kTorchrun, {.rank = 2})->world_size, 4u)
      << "what is not given comes from the launcher";
}

TEST(LaunchEnvironment, NamesTheVariableThatMakesNoSense) {
  for (const char* bad : {"x", "-1", "1.5", "99999999999", "1 "}) {
    Variables variables = kTorchrun;
    variables["RANK"] = bad;
    const auto launch = Detect(variables);
    EXPECT_EQ(launch.status().code(), Code::kInvalidArgument) << bad;
    EXPECT_THAT(launch.status().message(), HasSubstr("RANK is '"));
  }
}

TEST(LaunchEnvironment, RefusesARankBeyondTheSizeAndARankWithoutSize) {
  Variables variables = kTorchrun;
  variables["RANK"] = "4";
  EXPECT_THAT(Detect(variables).status().message(), HasSubstr("rank 4 of 4"));
  EXPECT_THAT(Detect({{"RANK", "0"}}).status().message(), HasSubstr("WORLD_SIZE is not"));
  EXPECT_THAT(Detect({}, {.rank = 3}).status().message(), HasSubstr("rank 3 of 1"));
}

TEST(LaunchEnvironment, IdIsTheSameInAllRanksOfALaunchAndAnotherInTheNext) {
  Variables other_rank = kTorchrun;
  other_rank["RANK"] = "0";
  other_rank["LOCAL_RANK"] = "0";
  EXPECT_EQ(Detect(kTorchrun)->id, Detect(other_rank)->id);
  EXPECT_NE(Detect(kTorchrun)->id, "");
  Variables restarted = kTorchrun;
  restarted["TORCHELASTIC_RESTART_COUNT"] = "1";
  EXPECT_NE(Detect(kTorchrun)->id, Detect(restarted)->id);
  EXPECT_EQ(Detect(kTorchrun, {}, "1:1")->id, Detect(kTorchrun, {}, "2:2")->id)
      << "two nodes: their torchrun processes differ";
}

// What the collector compares to see a restart after a crash; torchrun may choose another port for
// it.
TEST(LaunchEnvironment, OnlyWhatFollowsTheMarkDiffersBetweenRestarts) {
  Variables restarted = kTorchrun;
  restarted["LOCAL_WORLD_SIZE"] = "4";
  const std::string first = Detect(restarted, {}, "1:1")->id;
  restarted["TORCHELASTIC_RESTART_COUNT"] = "3";
  restarted["MASTER_PORT"] = "1";
  const std::string later = Detect(restarted, {}, "1:1")->id;
  EXPECT_EQ(first.substr(0, first.rfind('#')), later.substr(0, later.rfind('#')));
  EXPECT_THAT(first, HasSubstr("#0:"));
  EXPECT_THAT(later, HasSubstr("#3:1"));
  const Variables slurm = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_JOB_ID", "7"}};
  Variables requeued = slurm;
  requeued["SLURM_RESTART_COUNT"] = "1";
  EXPECT_EQ(Detect(slurm)->id, "slurm:7:#0");
  EXPECT_EQ(Detect(requeued)->id, "slurm:7:#1");
}

TEST(LaunchEnvironment, OnOneNodeTheLaunchersProcessTellsLaunchesApart) {
  Variables one_node = kTorchrun;
  one_node["LOCAL_WORLD_SIZE"] = "4";
  EXPECT_EQ(Detect(one_node, {}, "1:1")->id, Detect(one_node, {}, "1:1")->id);
  EXPECT_NE(Detect(one_node, {}, "1:1")->id, Detect(one_node, {}, "1:2")->id);
}

TEST(LaunchEnvironment, OpenMpiLaunchesDifferByTheirKey) {
  Variables first = {{"OMPI_COMM_WORLD_RANK", "0"},
                     {"OMPI_COMM_WORLD_SIZE", "2"},
                     {"PMIX_NAMESPACE", "77"},
                     {"OMPI_MCA_orte_precondition_transports", "aa-bb"}};
  Variables second = first;
  second["OMPI_MCA_orte_precondition_transports"] = "cc-dd";
  EXPECT_NE(Detect(first)->id, Detect(second)->id);
  second = first;
  second["OMPI_COMM_WORLD_RANK"] = "1";
  EXPECT_EQ(Detect(first)->id, Detect(second)->id);
}

TEST(LaunchEnvironment, ParentIdentityIsStable) {
  EXPECT_EQ(ReadParentIdentity(), ReadParentIdentity());
  EXPECT_THAT(ReadParentIdentity(), ::testing::MatchesRegex("[0-9]+:[0-9]+"));
}

}  // namespace
}  // namespace statcollect
