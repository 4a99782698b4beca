using System;
using System.IO;
using System.Linq;
static class Program {
  static int Main() {
    if (!<<name>>.ObservationSizes.SequenceEqual(new int[] { <<sizes.observations | join(", ")>> }) || <<name>>.MaskSize != <<sizes.mask>>
        || <<name>>.MemorySize != <<sizes.memory>> || <<name>>.ContinuousSize != <<sizes.continuous>>
        || <<name>>.DiscreteSize != <<sizes.discrete>>) return 9;
    var data = new MemoryStream();
    Console.OpenStandardInput().CopyTo(data);
    var bytes = data.ToArray();
    var numbers = new float[bytes.Length / 4];
    Buffer.BlockCopy(bytes, 0, numbers, 0, bytes.Length);
    int at = 0;
    Func<int, float[]> take = size => {
      var part = new float[size];
      Array.Copy(numbers, at, part, 0, size);
      at += size;
      return part;
    };
    var policy = new <<name>>(1);
    var memory = new float[<<name>>.MemorySize];
    var output = new MemoryStream();
    var writer = new BinaryWriter(output);
    while (at < numbers.Length) {
      var observations = <<name>>.ObservationSizes.Select(take).ToArray();
      var mask = take(<<name>>.MaskSize);
      var flags = take(2);
      if (flags[0] != 0) Array.Clear(memory, 0, memory.Length);
      var random = take(<<name>>.RandomSize);
      policy.Decide(1, observations, mask.Length > 0 ? mask : null, memory, random, flags[1] != 0);
      foreach (float value in policy.Continuous) writer.Write(value);
      foreach (int value in policy.Discrete) writer.Write((float)value);
    }
    writer.Flush();
    output.WriteTo(Console.OpenStandardOutput());
    return 0;
  }
}
