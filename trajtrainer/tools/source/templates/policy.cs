<<comment>>

using System;

/// <summary>Decides for up to maxAgents agents at a time. Each thread needs its own policy object.</summary>
public sealed class <<name>>
{
    public static readonly string[] Sensors = { <<names>> };
    public static readonly int[] ObservationSizes = { <<program.sensors | map(attribute="size") | join(", ")>> };
    public const int ContinuousSize = <<program.continuous_size>>;
    public const int DiscreteSize = <<program.branches | length>>;
    public const int MaskSize = <<program.branches | sum>>;
    public const int MemorySize = <<program.memory_size>>;
    public const int RandomSize = <<program.random_size>>;

    /// <summary>The latest decision, agent by agent.</summary>
    public readonly float[] Continuous;
    public readonly int[] Discrete;

    readonly float[] work = new float[<<[1, program.workspace_size] | max>>];

<<tables>>

    public <<name>>(int maxAgents = 1)
    {
        Continuous = new float[maxAgents * ContinuousSize];
        Discrete = new int[maxAgents * DiscreteSize];
    }

    /// <summary>Writes the actions into Continuous and Discrete.</summary>
    /// <param name="agents">Number of agents.</param>
    /// <param name="observations">One array per sensor.</param>
    /// <param name="mask">The action mask; null allows all actions.</param>
    /// <param name="memory">Memory of each agent, which is updated; null if the policy has no memory.</param>
    /// <param name="random">Random numbers; null if deterministic.</param>
    /// <param name="deterministic">Take the most likely action instead of sampling one.</param>
    public void Decide(
        int agents, float[][] observations, float[] mask, float[] memory, float[] random, bool deterministic)
    {
        for (int k = 0; k < ObservationSizes.Length; k++)
            Expect("observations of " + Sensors[k], observations[k], agents * ObservationSizes[k]);
        if (mask != null) Expect("mask", mask, agents * MaskSize);
        if (!deterministic) Expect("random", random, agents * RandomSize);
<<code>>
    }

    /// <summary>Drops the oldest of an agent's stacked frames and appends the newest one.</summary>
    public static void Stack(float[] stacked, float[] frame)
    {
        Array.Copy(stacked, frame.Length, stacked, 0, stacked.Length - frame.Length);
        Array.Copy(frame, 0, stacked, stacked.Length - frame.Length, frame.Length);
    }

    static void Expect(string name, float[] array, int length)
    {
        int found = array == null ? 0 : array.Length;
        if (found < length) throw new ArgumentException(name + ": expected " + length + " numbers, got " + found);
    }

    static float[] Decode(string text)
    {
        byte[] bytes = Convert.FromBase64String(text);
        var values = new float[bytes.Length / sizeof(float)];
        Buffer.BlockCopy(bytes, 0, values, 0, bytes.Length);
        return values;
    }
}

<<component>>