// Files that are not what they claim to be, and folders that want out: an error with file and line,
// or a count.
#include <fcntl.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/formats/dump.h"
#include "client/formats/ort_text.h"
#include "tests/client/formats/observations.h"

namespace statcollect::client::formats {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class BadInputTest : public ::testing::Test {
 protected:
  BadInputTest() {
    std::string pattern = (fs::temp_directory_path() / "import-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~BadInputTest() override {
    fs::permissions(path_, fs::perms::owner_all);
    fs::remove_all(path_);
  }
  void Write(const std::string& file, const std::string& text) {
    fs::create_directories((path_ / file).parent_path());
    std::ofstream(path_ / file, std::ios::binary) << text;
  }
  std::string Read(DumpFormat format = DumpFormat::kOrt, ReadOptions options = {}) {
    if (options.path.empty()) options.path = path_.string();
    return RenderDump(format, options);
  }

  fs::path path_;
};

std::string Record(const std::string& name = "Linear_1_0th_output") {
  return ">>" + name +
         " forward run shape: torch.Size([2, 2]) dtype: torch.float32 size: torch.Size([4]) \n"
         "min: -1 max: 2, mean: 0.5, std: 1.25 \n"
         "nan: 0, inf: 0\n"
         "samples(top 128): tensor([ 1.0, 2.0, -1.0,\n        0.5])\n"
         "neg: 1, pos: 3, zero: 0,\n"
         "================\n";
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

struct Wrong {
  const char* what;
  std::string text;
  int line;
};

class OrtWrongText : public BadInputTest, public ::testing::WithParamInterface<Wrong> {};

TEST_P(OrtWrongText, IsNamedWithFileAndLine) {
  Write("step_0/Linear_1_0th_output_forward", GetParam().text);
  Write("step_0/order.txt", "Linear_1_0th_output_forward\n");
  const std::string read = Read();
  EXPECT_THAT(read, HasSubstr("error: DUMP/step_0/Linear_1_0th_output_forward:" +
                              std::to_string(GetParam().line) + ": found"));
  EXPECT_THAT(read, HasSubstr("; expected "));
  EXPECT_THAT(read, Not(HasSubstr("absent"))) << "nothing of a bad record is taken";
}

std::string Lines(int count) {
  std::string text = Record();
  std::size_t end = 0;
  for (int i = 0; i < count; ++i) end = text.find('\n', end) + 1;
  return text.substr(0, end);
}

INSTANTIATE_TEST_SUITE_P(
    All, OrtWrongText,
    ::testing::Values(
        Wrong{"empty", "", 1},
        Wrong{"binary",
              std::string("\x7f"
                          "ELF\0\1\2\xff",
                          8),
              1},
        Wrong{"one line", Lines(1), 1}, Wrong{"two lines", Lines(2), 2},
        Wrong{"in the samples", Lines(4), 4}, Wrong{"no end", Lines(6), 6},
        Wrong{"cut in a number", Record().substr(0, Record().find("mean")), 2},
        Wrong{"negative size", Replaced(Record(), "[2, 2]", "[-2, 2]"), 1},
        Wrong{"size beyond 2^63", Replaced(Record(), "[2, 2]", "[99999999999999999999]"), 1},
        Wrong{"2^62 elements", Replaced(Record(), "[2, 2]", "[2147483648, 2147483648]"), 1},
        Wrong{"shape and size", Replaced(Record(), "[2, 2]", "[2, 3]"), 1},
        Wrong{"min above max", Replaced(Record(), "min: -1", "min: 3"), 2},
        Wrong{"beyond a double", Replaced(Record(), "max: 2", "max: 1e999"), 2},
        Wrong{"no number", Replaced(Record(), "max: 2", "max: two"), 2},
        Wrong{"negative count", Replaced(Record(), "nan: 0", "nan: -1"), 3},
        Wrong{"more NaN than elements", Replaced(Record(), "nan: 0", "nan: 5"), 3},
        Wrong{"something behind", Replaced(Record(), "inf: 0", "inf: 0 and more"), 3},
        Wrong{"invalid UTF-8", Record("Lin\xff\xfe_1_0th_output"), 1},
        Wrong{"escape", Record("\x1b[31mred"), 1},
        Wrong{"no direction", Replaced(Record(), " forward run", ""), 1},
        Wrong{"a very deep tree", std::string(5000, '>') + Record(), 1},
        Wrong{"a name of 2000 bytes", Record(std::string(2000, 'x')), 1}),
    [](const auto& tested) {
      std::string name = tested.param.what;
      for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
      return name;
    });

TEST_F(BadInputTest, DamagedTensorOfMindSporeIsNamedAndTheOthersAreRead) {
  const auto tensor = [](const std::string& descr, const std::string& data) {
    const std::string header =
        "{'descr': '" + descr + "', 'fortran_order': False, 'shape': (1,), }\n";
    return std::string("\x93NUMPY\1\0", 8) + static_cast<char>(header.size()) + '\0' + header +
           data;
  };
  const std::string folder = "rank_0/Net/0/2/";
  Write(folder + "Add.A-op1.0.0.1.output.0.ND.npy", tensor("|O", "1234"));
  Write(folder + "Add.A-op2.0.0.2.output.0.ND.npy", tensor("<f4", "12"));
  Write(folder + "Add.A-op3.0.0.3.output.0.ND.npy", tensor("<f4", std::string(4, '\0')));
  EXPECT_THAT(
      Read(DumpFormat::kMindSpore),
      AllOf(
          HasSubstr("Add.A-op1.0.0.1.output.0.ND.npy: found an array of Python objects; expected"),
          Not(HasSubstr("A-op3"))));
  EXPECT_THAT(
      Read(DumpFormat::kMindSpore, {.keep_going = true}),
      AllOf(HasSubstr("Add.A-op2.0.0.2.output.0.ND.npy: found 2 bytes of elements; expected 4"),
            HasSubstr("step 2 output 'A-op3' path 0 class 'Add'")));
}

TEST_F(BadInputTest, LineWithoutEndIsRefusedWithoutBeingHeld) {
  fs::create_directories(path_ / "step_0");
  const fs::path file = path_ / "step_0/Linear_1_0th_output_forward";
  std::ofstream(file) << "";
  fs::resize_file(file, std::uintmax_t{1} << 30);  // a gigabyte of zeros, none of them on the disk
  EXPECT_THAT(
      Read(),
      HasSubstr(
          "DUMP/step_0/Linear_1_0th_output_forward:1: found a line of more than 1048576 bytes"));
}

TEST_F(BadInputTest, LinkOutOfTheDumpIsNotFollowed) {
  Write("secret_forward", Record());
  Write("dump/step_0/Linear_2_0th_output_forward", Record("Linear_2_0th_output"));
  fs::create_symlink(path_ / "secret_forward", path_ / "dump/step_0/Linear_1_0th_output_forward");
  fs::create_directory_symlink(path_, path_ / "dump/step_1");
  Write("dump/step_0/order.txt", "Linear_1_0th_output_forward\nLinear_2_0th_output_forward\n");
  const std::string read = Read(DumpFormat::kOrt, {.path = path_ / "dump"});
  EXPECT_THAT(read, AllOf(HasSubstr("Linear_2"), Not(HasSubstr("Linear_1_0th")),
                          HasSubstr("skipped 2 symbolic link"),
                          HasSubstr("skipped 1 named in order.txt, but missing")));
}

TEST_F(BadInputTest, PathsInOrderFileAreRefused) {
  Write("step_0/Linear_1_0th_output_forward", Record());
  Write("step_0/order.txt", "Linear_1_0th_output_forward\n../../etc/passwd_forward\n");
  EXPECT_THAT(Read(), HasSubstr("error: DUMP/step_0/order.txt:2: found '../../etc/passwd_forward'; "
                                "expected the name of a file in this folder"));
}

TEST_F(BadInputTest, PipeDoesNotMakeTheImportWait) {
  fs::create_directories(path_ / "step_0");
  ASSERT_EQ(mkfifo((path_ / "step_0/Linear_1_0th_output_forward").c_str(), 0600), 0);
  Write("step_0/Linear_2_0th_output_forward", Record("Linear_2_0th_output"));
  EXPECT_THAT(Read(), AllOf(HasSubstr("Linear_2"), HasSubstr("skipped 1 other file or folder")));
}

TEST_F(BadInputTest, KeepGoingLeavesTheBadFileOutAndSaysSo) {
  Write("step_0/Linear_1_0th_output_forward", "nothing of the kind\n");
  Write("step_0/Linear_2_0th_output_forward", Record("Linear_2_0th_output"));
  Write("step_0/order.txt", "Linear_1_0th_output_forward\nLinear_2_0th_output_forward\n");
  EXPECT_THAT(Read(DumpFormat::kOrt, {.keep_going = true}),
              AllOf(HasSubstr("left out: DUMP/step_0/Linear_1_0th_output_forward:1: found"),
                    HasSubstr("'Linear_2_0th_output'"), HasSubstr("skipped 1 bad file"),
                    HasSubstr("end of step 0"), Not(HasSubstr("error"))));
}

TEST_F(BadInputTest, EmptyFolderFileAndNothingAreTold) {
  EXPECT_THAT(Read(), HasSubstr("found no steps; expected folders step_<k>"));
  Write("file", "text");
  EXPECT_THAT(Read(DumpFormat::kOrt, {.path = path_ / "file"}),
              HasSubstr("found a file; expected a folder"));
  EXPECT_THAT(Read(DumpFormat::kOrt, {.path = path_ / "nowhere"}),
              HasSubstr("No such file or directory"));
  EXPECT_THAT(Read(DumpFormat::kOrt, {.rank_pattern = "rank"}),
              HasSubstr("--rank-pattern: found 'rank'; expected"));
  EXPECT_THAT(Read(DumpFormat::kOrt, {.rank_pattern = "rank{}"}),
              HasSubstr("found no rank folders"));
}

TEST_F(BadInputTest, UnreadableFileIsTold) {
  if (geteuid() == 0) GTEST_SKIP() << "root reads everything";
  Write("step_0/Linear_1_0th_output_forward", Record());
  fs::permissions(path_ / "step_0/Linear_1_0th_output_forward", fs::perms::none);
  EXPECT_THAT(Read(), HasSubstr("Permission denied"));
}

TEST_F(BadInputTest, TwoFoldersOfOneStepAreRefused) {
  Write("step_1/Linear_1_0th_output_forward", Record());
  Write("step_01/Linear_1_0th_output_forward", Record());
  EXPECT_THAT(Read(), HasSubstr("expected each step only once"));
}

TEST_F(BadInputTest, FolderAboveTheRanksIsExplained) {
  Write("out_0/step_0/Linear_1_0th_output_forward", Record());
  EXPECT_THAT(Read(), AllOf(HasSubstr("out_0"), HasSubstr("--rank-pattern")));
}

// --- the order without order.txt

class OrtOrder : public BadInputTest {
 protected:
  void WriteAt(const std::string& name, const std::string& direction, int second) {
    Write("step_0/" + name + "_" + direction, Replaced(Record(name), " forward", " " + direction));
    fs::last_write_time(
        path_ / ("step_0/" + name + "_" + direction),
        fs::file_time_type::clock::now() - std::chrono::hours(1) + std::chrono::seconds(second));
  }
  std::string Names() {
    const std::string read = Read();
    std::string names;
    for (std::size_t at = 0; (at = read.find(" '", at)) != std::string::npos; ++at) {
      if (read.compare(at - 6, 6, "output") == 0)
        names += read.substr(at + 2, read.find('\'', at + 2) - at - 2) +
                 (read.compare(at - 11, 4, "grad") == 0 ? "< " : "> ");
    }
    return names;
  }
};

TEST_F(OrtOrder, IsThatOfTheTimesOfModification) {
  WriteAt("B_2_0th_output", "forward", 1);
  WriteAt("A_1_0th_output", "forward", 2);
  WriteAt("A_1_0th_output", "backward", 3);
  WriteAt("B_2_0th_output", "backward", 4);
  EXPECT_EQ(Names(), "B_2_0th_output> A_1_0th_output> A_1_0th_output< B_2_0th_output< ");
  EXPECT_THAT(Read(), HasSubstr("ordered by modification time"));
}

TEST_F(OrtOrder, IsThatOfTheModulesWhereTimesCannotBeIt) {
  WriteAt("A_10_0th_output", "backward", 1);
  WriteAt("B_2_0th_output", "forward", 2);
  WriteAt("A_10_0th_output", "forward", 3);
  WriteAt("B_2_0th_output", "backward", 4);
  EXPECT_EQ(Names(), "B_2_0th_output> A_10_0th_output> A_10_0th_output< B_2_0th_output< ");
  EXPECT_THAT(Read(), HasSubstr("ordered by their module's number"));
}

// --- msProbe

class MsProbeWrongText : public BadInputTest, public ::testing::WithParamInterface<Wrong> {};

TEST_P(MsProbeWrongText, IsNamedWithFileAndLine) {
  Write("step0/rank0/dump.json", GetParam().text);
  const std::string read = Read(DumpFormat::kMsProbe);
  EXPECT_THAT(read, HasSubstr("error: DUMP/step0/rank0/dump.json:" +
                              std::to_string(GetParam().line) + ": found"));
  EXPECT_THAT(read, HasSubstr("; expected "));
}

std::string Entry(const std::string& tensor,
                  const std::string& name = "Functional.relu.0.forward") {
  return "{\n\"task\": \"statistics\",\n\"data\": {\n\"" + name + "\": {\"output\": [\n" + tensor +
         "\n]}}}\n";
}

std::string Tensor(const std::string& more = "", const std::string& shape = "[2]") {
  return R"({"type": "torch.Tensor", "dtype": "torch.float32", "shape": )" + shape +
         R"(, "Max": 1.0, "Min": 0.0, "Mean": 0.5, "Norm": 1.0)" + more + "}";
}

INSTANTIATE_TEST_SUITE_P(
    All, MsProbeWrongText,
    ::testing::Values(
        Wrong{"empty", "", 1},
        Wrong{"binary",
              std::string("\x7f"
                          "ELF\0\1",
                          6),
              1},
        Wrong{"a list", "[]", 1}, Wrong{"a number", "\n42", 2}, Wrong{"no data", "{}", 1},
        Wrong{"data that is a list", "{\"data\": []}", 1},
        Wrong{"cut", Entry(Tensor()).substr(0, 60), 4},
        Wrong{"two documents", Entry(Tensor()) + "{}", 7},
        Wrong{"negative size", Entry(Tensor("", "[-1]")), 5},
        Wrong{"a size of text", Entry(Tensor("", "[\"2\"]")), 5},
        Wrong{"2^62 elements", Entry(Tensor("", "[4294967296, 4294967296]")), 5},
        Wrong{"min above max", Entry(Tensor(", \"Min\": 7")), 5},
        Wrong{"beyond a double", Entry(Tensor(", \"Max\": 1e999")), 5},
        Wrong{"invalid UTF-8", Entry(Tensor(), "Functional.\xff.0.forward"), 4},
        Wrong{"escape in a name", Entry(Tensor(), "Functional.\\u001b[31m.0.forward"), 5},
        Wrong{"a name of 2000 bytes", Entry(Tensor(), std::string(2000, 'x') + ".0.forward"), 5},
        Wrong{"deep", Entry(std::string(100'000, '[')), 5},
        Wrong{"a string of 2 MiB", "{\"" + std::string(2 << 20, 'x') + "\": 1}", 1}),
    [](const auto& tested) {
      std::string name = tested.param.what;
      for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
      return name;
    });

TEST_F(BadInputTest, MsProbeStringWithoutEndIsRefusedWithoutBeingHeld) {
  fs::create_directories(path_ / "step0/rank0");
  std::ofstream(path_ / "step0/rank0/dump.json") << "{\"data\": {\"";
  fs::resize_file(path_ / "step0/rank0/dump.json", std::uintmax_t{1} << 30);
  EXPECT_THAT(Read(DumpFormat::kMsProbe), HasSubstr("DUMP/step0/rank0/dump.json:1: found"));
}

TEST_F(BadInputTest, MsProbeKeepsWhatStoodBeforeTheFaultAndGoesOnWithTheNextStep) {
  Write("step0/rank0/dump.json", Entry(Tensor() + ",\n" + Tensor("", "[-1]")));
  Write("step1/rank0/dump.json", Entry(Tensor()));
  EXPECT_THAT(Read(DumpFormat::kMsProbe, {.keep_going = true}),
              AllOf(HasSubstr("step 0 output 'Functional.relu'"),
                    HasSubstr("step 1 output 'Functional.relu'"),
                    HasSubstr("left out: DUMP/step0/rank0/dump.json:6: found"),
                    HasSubstr("skipped 1 bad file")));
}

TEST_F(BadInputTest, MsProbeFolderWithoutADumpIsTold) {
  Write("step0/rank0/stack.json", "{}");
  EXPECT_THAT(Read(DumpFormat::kMsProbe),
              HasSubstr("found no dump.json; expected step<N>/rank<R>/dump.json"));
}

TEST_F(BadInputTest, MsProbeLinksAreNotFollowed) {
  Write("elsewhere/dump.json", Entry(Tensor()));
  Write("dump/step0/rank0/dump.json", Entry(Tensor()));
  fs::create_directory_symlink(path_ / "elsewhere", path_ / "dump/step0/rank1");
  fs::create_directory_symlink(path_ / "elsewhere", path_ / "dump/step1");
  EXPECT_THAT(Read(DumpFormat::kMsProbe, {.path = path_ / "dump"}),
              AllOf(Not(HasSubstr("rank 1")), Not(HasSubstr("step 1"))));
}

// --- MindSpore

class MindSporeWrongText : public BadInputTest, public ::testing::WithParamInterface<Wrong> {};

TEST_P(MindSporeWrongText, IsNamedWithFileAndLine) {
  Write("rank_0/Net/0/1/statistic.csv", GetParam().text);
  const std::string read = Read(DumpFormat::kMindSpore);
  EXPECT_THAT(read, HasSubstr("error: DUMP/rank_0/Net/0/1/statistic.csv:" +
                              std::to_string(GetParam().line) + ": found"));
  EXPECT_THAT(read, HasSubstr("; expected "));
}

std::string Csv(const std::string& row) {
  return "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Max "
         "Value,Min "
         "Value,NaN Count,MD5\n"
         "Sub,a,0,0,1,input,0,4,float32,\"(2,3)\",2,1,0,d41d8cd98f00b204e9800998ecf8427e,\n" +
         row + "\n";
}

INSTANTIATE_TEST_SUITE_P(
    All, MindSporeWrongText,
    ::testing::Values(
        Wrong{"empty", "", 1}, Wrong{"binary", std::string("\0\1\2,\xff", 5), 1},
        Wrong{"no header", "Sub,a,0,0,1\n", 1}, Wrong{"columns missing", "Op Type,Op Name,IO\n", 1},
        Wrong{"a column twice", "Op Type,Op Type\n", 1},
        Wrong{"too few cells", Csv("Sub,b,0,0,1,input,0"), 3},
        Wrong{"open quote", Csv("Sub,b,0,0,1,input,0,4,float32,\"(2,3),2,1,0,,"), 3},
        Wrong{"no direction", Csv("Sub,b,0,0,1,sideways,0,4,float32,\"()\",2,1,0,,"), 3},
        Wrong{"no slot", Csv("Sub,b,0,0,1,input,x,4,float32,\"()\",2,1,0,,"), 3},
        Wrong{"no shape", Csv("Sub,b,0,0,1,input,0,4,float32,\"(2,-3)\",2,1,0,,"), 3},
        Wrong{"2^62 elements",
              Csv("Sub,b,0,0,1,input,0,4,float32,\"(4294967296,4294967296)\",2,1,0,,"), 3},
        Wrong{"no number", Csv("Sub,b,0,0,1,input,0,4,float32,\"()\",two,1,0,,"), 3},
        Wrong{"beyond a double", Csv("Sub,b,0,0,1,input,0,4,float32,\"()\",1e999,1,0,,"), 3},
        Wrong{"min above max", Csv("Sub,b,0,0,1,input,0,4,float32,\"()\",1,2,0,,"), 3},
        Wrong{"more NaN than elements", Csv("Sub,b,0,0,1,input,0,4,float32,\"(2,)\",1,1,3,,"), 3},
        Wrong{"no MD5", Csv("Sub,b,0,0,1,input,0,4,float32,\"()\",1,1,0,xyz,"), 3},
        Wrong{"invalid UTF-8", Csv("Sub,\xff,0,0,1,input,0,4,float32,\"()\",1,1,0,,"), 3},
        Wrong{"a thousand cells", Csv(std::string(1000, ',')), 3},
        Wrong{"a long line", Csv(std::string(2 << 20, 'x')), 3}),
    [](const auto& tested) {
      std::string name = tested.param.what;
      for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
      return name;
    });

TEST_F(BadInputTest, MindSporeFolderWithoutStatisticsIsTold) {
  Write("rank_0/execution_order/order.csv", "x\n");
  EXPECT_THAT(Read(DumpFormat::kMindSpore), HasSubstr("found no statistics; expected rank_<id>"));
}

// --- the parts that all formats share

TEST(LineReader, GivesLinesOfEveryEnding) {
  MemorySource source("f", "one\r\n\ntwo\nthree");
  LineReader reader;
  reader.Reset(source);
  std::string_view line;
  std::vector<std::string> lines;
  while (reader.Next(&line).value()) lines.emplace_back(line);
  EXPECT_THAT(lines, ::testing::ElementsAre("one", "", "two", "three"));
  EXPECT_EQ(reader.line(), 4u);
}

TEST(LineReader, TakesALineOfExactlyTheLimitAndNoLongerOne) {
  const std::string text =
      std::string(kLineBytesMax, 'x') + "\n" + std::string(kLineBytesMax + 1, 'y') + "\n";
  MemorySource source("f", text);
  LineReader reader;
  reader.Reset(source);
  std::string_view line;
  ASSERT_TRUE(reader.Next(&line).value());
  EXPECT_EQ(line.size(), kLineBytesMax);
  EXPECT_THAT(reader.Next(&line).status().message(), HasSubstr("f:2: found a line of more than"));
}

TEST(NumberPattern, MatchesItsNumberOnly) {
  const auto pattern = NumberPattern::Parse("out_{rank}_x");
  ASSERT_TRUE(pattern.ok());
  EXPECT_EQ(pattern->Match("out_12_x"), 12u);
  for (const char* other :
       {"out__x", "out_-1_x", "out_1", "out_1_xy", "out_1x_x", "out_99999999999999999999_x"})
    EXPECT_EQ(pattern->Match(other), std::nullopt) << other;
  for (const char* wrong : {"", "rank", "a{}b{}", "{rank}{}", "a/{}", "{x}"})
    EXPECT_FALSE(NumberPattern::Parse(wrong).ok()) << wrong;
}

TEST(OrtName, IsClassIndexAndOutput) {
  const auto module = ParseOrtName("My_Layer_12_3th_output");
  ASSERT_TRUE(module.has_value());
  EXPECT_EQ(module->class_name, "My_Layer");
  EXPECT_EQ(module->index, 12u);
  for (const char* other :
       {"fc1_out", "th_output", "_1_0th_output", "Linear_x_0th_output", "Linear_1_0th_outputs"})
    EXPECT_FALSE(ParseOrtName(other).has_value()) << other;
}

}  // namespace
}  // namespace statcollect::client::formats
